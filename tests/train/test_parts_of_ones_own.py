"""A model, a task and a monitor that Tessera does not have (tests/train/toy): each is one file and one line, and everything
that `tessera train` does works for them."""

import json
import math

import pytest
import tessera_runs
from tessera_runs import tessera, write_run_file

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
VOCABULARY = len(SPECIAL_TOKENS) + len(LETTERS)
WIDTH = 8
STEPS = 40


@pytest.fixture(autouse=True)
def toy_program(monkeypatch):
    monkeypatch.setattr(tessera_runs, "TESSERA", tessera_runs.TESSERA.parent / "tests" / "toy_tessera")


@pytest.fixture
def run(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(
        {"model_type": "toy-table", "architectures": ["ToyTableForCopying"], "vocab_size": VOCABULARY, "width": WIDTH}))
    (model / "vocab.txt").write_text("\n".join(SPECIAL_TOKENS + LETTERS) + "\n")
    (tmp_path / "train.txt").write_text("\n".join(" ".join(LETTERS[i % 20:i % 20 + 5]) for i in range(40)) + "\n")
    (tmp_path / "eval.txt").write_text("a b c\nx y z\n")
    return {
        "model": {"path": "model", "init": "random"}, "task": "copy", "monitors": ["tally", "jsonl"],
        "data": {"train": "train.txt", "eval": "eval.txt", "max_length": 16},
        "training": {"max_steps": STEPS, "eval_at_start": True},
        "deepspeed": {"train_batch_size": 8, "zero_optimization": {"stage": 0},
                      "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}},
    }


def tally(folder):
    """[("step", 1, loss), …]"""
    lines = [line.split() for line in (folder / "tally.txt").read_text().splitlines()]
    return [(what, int(step), float.fromhex(loss)) for what, step, loss in lines]


def trained(tmp_path, run, output, *args):
    result = tessera("train", write_run_file(tmp_path, run), "--set", f"output={tmp_path / output}", *args)
    assert result.code == 0, str(result)
    return result


def test_the_toys_train_on_two_ranks_with_the_same_bits_at_every_stage(tmp_path, run):
    seen = {}
    for stage in (0, 1, 3):
        result = trained(tmp_path, run, f"out{stage}", "--nproc", 2, "--set", f"deepspeed.zero_optimization.stage={stage}")
        seen[stage] = tally(tmp_path / f"out{stage}")
        assert f"metrics                  {tmp_path / f'out{stage}' / 'tally.txt'}" in result.out
        assert f"metrics                  {tmp_path / f'out{stage}' / 'metrics.jsonl'}" in result.out
    steps = [(step, loss) for what, step, loss in seen[0] if what == "step"]
    assert [step for step, _ in steps] == list(range(1, STEPS + 1))
    # Before it has learnt anything it is about as sure as a guess among all tokens; the task has no noise, so it ends at 0.
    assert steps[0][1] > math.log(VOCABULARY) / 2
    assert steps[-1][1] < 0.1
    assert [step for what, step, _ in seen[0] if what == "evaluation"][0] == 0
    assert seen[1] == seen[0] and seen[3] == seen[0]
    rows = [json.loads(line) for line in (tmp_path / "out0" / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows if "loss" in row] == [loss for _, loss in steps]


def test_a_toy_is_exported_and_trained_further_from_its_weights(tmp_path, run):
    trained(tmp_path, run, "out")
    exported = json.loads((tmp_path / "out" / "export" / "config.json").read_text())
    assert exported["architectures"] == ["ToyTableForCopying"] and exported["width"] == WIDTH
    last = [loss for what, _, loss in tally(tmp_path / "out") if what == "evaluation"][-1]
    run["model"] = {"path": "out/export"}
    trained(tmp_path, run, "again", "--set", "training.max_steps=1")
    first = tally(tmp_path / "again")[0]
    assert first == ("evaluation", 0, pytest.approx(last, rel=1e-6))


def test_a_dry_run_counts_the_toys_parameters(tmp_path, run):
    result = tessera("train", write_run_file(tmp_path, run), "--dry-run")
    assert result.code == 0, str(result)
    assert f"{2 * VOCABULARY * WIDTH + VOCABULARY} parameters" in result.out  # rows, logits and their bias
    assert "data.train: 40 rows" in result.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("args", [["--nproc", 2], ["--dry-run"]])
def test_a_toy_that_cannot_fit_is_refused_before_it_is_made(tmp_path, run, args):
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "width": 10**9}))
    result = tessera("train", write_run_file(tmp_path, run), *args)
    assert result.code == 2, str(result)
    assert "the run needs at least" in result.err and "training.memory_check" in result.err


def test_an_estimate_knows_the_toy(tmp_path, run):
    result = tessera("estimate", "--model", tmp_path / "model", "--json")
    assert result.code == 0, str(result)
    assert json.loads(result.out)["model"]["params"] == 2 * VOCABULARY * WIDTH + VOCABULARY


@pytest.mark.parametrize(("change", "said"), [
    (lambda run, config: run.update(task="copi"), ["there is no task 'copi'", "run.yaml, task", "did you mean 'copy'?"]),
    (lambda run, config: run.update(monitors=["tallly"]),
     ["there is no monitor 'tallly'", "run.yaml, monitors", "did you mean 'tally'?"]),
    (lambda run, config: config.update(model_type="toy-tabel"),
     ["the model is a 'toy-tabel'", "config.json", "did you mean 'toy-table'?", "supported model types: bert, distilbert, "]),
    (lambda run, config: run.update(task="mlm"), ["the task mlm trains models for MaskedLM", "'toy-table'", "config.json"]),
    (lambda run, config: config.update(model_type="bert"),
     ["the task copy trains models for Copying", "'bert'", "config.json"]),
], ids=["task", "monitor", "model type", "task of other models", "model of other tasks"])
def test_what_is_not_in_a_table_is_an_error_with_the_nearest_name(tmp_path, run, change, said):
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    change(run, config)
    path.write_text(json.dumps(config))
    for args in (["--nproc", 2], ["--dry-run"]):
        result = tessera("train", write_run_file(tmp_path, run), *args)
        assert result.code == 2, str(result)
        assert all(text in result.err for text in said), str(result)
