"""Texts that are kept tokenised (data.cache), and mixtures of several (data.weights)."""

import json
import random

import pytest
import test_classification
import test_dpo
import test_instruction_tuning
import test_seq2seq
from model_folders import SYLLABLES
from tessera_runs import evaluations, losses_and_norms, metrics, tessera, train, write_run_file

MEGABYTE = 1 << 20
FOUND = "tokenised samples found in"


def write_text(path, megabytes):
    draw = random.Random(3)
    lines = [" ".join(draw.choices(SYLLABLES, k=24)) + "\n" for _ in range(1000)]
    piece = "".join(lines)
    with open(path, "w") as file:
        for _ in range(round(megabytes * MEGABYTE / len(piece)) or 1):
            file.write(piece)
    return str(path)


def entries(folder):
    """Of a folder of tokens, each with when it was written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/*")}


def trained(folder, run, cache, **settings):
    """The output folder, and what the run said."""
    run_file = write_run_file(folder, run)
    result = train(run_file, 2, {"output": folder / "out", "data.cache": cache, "training.max_steps": 3, **settings})
    return folder / "out", result.err


def test_a_text_larger_than_what_is_held_of_it(tmp_path, tiny_run):
    """Of 32 MB more text a run that holds it takes over 60 MB more memory; one that keeps it in a folder far less, of which mapped pages, which the
    system may take back, are most."""
    peaks = {}
    for megabytes in (1, 33):
        tiny_run["data"]["train"] = write_text(tmp_path / f"{megabytes}.txt", megabytes)
        outputs = {}
        for cache in ("none", tmp_path / "tokens"):
            folder = tmp_path / f"{megabytes}-{'kept' if cache != 'none' else 'held'}"
            outputs[cache], _ = trained(folder, tiny_run, cache)
            peaks[megabytes, cache != "none"] = max(row.get("peak_memory_bytes", 0) for row in metrics(outputs[cache]))
        held, kept = outputs.values()
        assert losses_and_norms(held) == losses_and_norms(kept)
    held, kept = (peaks[33, is_kept] - peaks[1, is_kept] for is_kept in (False, True))
    assert held > 60 * MEGABYTE and kept < 0.6 * held, peaks


def test_a_text_is_tokenised_once(tmp_path, tiny_run):
    tiny_run["data"]["train"] = write_text(tmp_path / "text.txt", 0.2)
    first, _ = trained(tmp_path / "first", tiny_run, tmp_path / "tokens")
    made = entries(tmp_path / "tokens")
    second, said = trained(tmp_path / "second", tiny_run, tmp_path / "tokens")
    assert FOUND in said and made and entries(tmp_path / "tokens") == made, said
    assert losses_and_norms(first) == losses_and_norms(second)
    folders = [path for path in (tmp_path / "tokens").iterdir() if path.is_dir()]
    assert len(folders) == 1
    (folders[0] / "tokens.bin").write_bytes(b"")
    third, said = trained(tmp_path / "third", tiny_run, tmp_path / "tokens")
    assert "damaged" in said and losses_and_norms(third) == losses_and_norms(first)
    write_text(tmp_path / "text.txt", 0.3)
    trained(tmp_path / "fourth", tiny_run, tmp_path / "tokens")
    assert len([path for path in (tmp_path / "tokens").iterdir() if path.is_dir()]) == 2


def labelled_rows(folder):
    test_classification.make_model(folder, "Bert", **test_classification.labelled())
    return test_classification.run_of(folder), {}


def preferences(folder):
    return test_dpo.preference_run(folder)[1:]


def conversations(folder):
    rows = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in test_dpo.TEXTS]
    return test_instruction_tuning.chat_run(folder, rows)[1:]


def pairs_to_be_scored(folder):
    run_file = test_seq2seq.run_of(folder)[1]
    return run_file, {"data.eval": folder / "train.jsonl", "training.eval_bleu": 4}


@pytest.mark.sample("preferences", "labelled_rows")
@pytest.mark.parametrize("task", [labelled_rows, preferences, conversations, pairs_to_be_scored])
def test_every_task_keeps_its_tokens(tmp_path, task):
    """The same bits with and without, and the second run tokenises nothing; one with another length does."""
    run_file, settings = task(tmp_path)
    outputs, said = {}, {}
    for name, cache in {"held": "none", "made": tmp_path / "tokens", "found": tmp_path / "tokens"}.items():
        outputs[name] = tmp_path / name
        made = entries(tmp_path / "tokens")  # each rank that comes first makes one, and the others find it
        said[name] = train(run_file, 2, {**settings, "training.max_steps": 3, "data.cache": cache, "output": outputs[name]}).err
    assert FOUND not in said["held"] and FOUND in said["found"], said
    assert made and entries(tmp_path / "tokens") == made, "the last run made none"
    bits = [(losses_and_norms(output), [row.get("eval_bleu") for row in evaluations(output)]) for output in outputs.values()]
    assert len(bits[0][0]) == 3 and bits[1:] == [bits[0]] * 2
    kept = {path.name for path in (tmp_path / "tokens").iterdir() if path.is_dir()}
    train(run_file, 2, {**settings, "training.max_steps": 1, "data.max_length": 11, "data.cache": tmp_path / "tokens", "output": tmp_path / "shorter"})
    assert len({path.name for path in (tmp_path / "tokens").iterdir() if path.is_dir()} - kept) == len(kept)


def test_a_small_text_leaves_no_folder(tmp_path, tiny_run):
    out, _ = trained(tmp_path, tiny_run, "auto")
    assert not (out / "tokens").exists()


def mixture(tmp_path, tiny_run, weights):
    """Two files of 30 and 90 samples."""
    for name, letter, rows in (("a", SYLLABLES[0], 30), ("b", SYLLABLES[1], 90)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{letter} {SYLLABLES[2]} {letter}\n" for _ in range(rows)))
    tiny_run["data"] = {"train": [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], "weights": weights, "max_length": 32}
    tiny_run["deepspeed"]["train_batch_size"] = 4
    tiny_run["training"] = {"epochs": 2, "seed": 42, "save_steps": 10}
    return write_run_file(tmp_path, tiny_run)


def test_a_mixture_has_the_wanted_shares(tmp_path, tiny_run):
    run_file = mixture(tmp_path, tiny_run, [1, 1])
    result = train(run_file, 2, {"output": tmp_path / "out"})
    assert "an epoch has 60 samples, of the entries of data.train 30, 30" in result.err, result.err
    rows = [row for row in metrics(tmp_path / "out") if "loss" in row]
    assert len(rows) == 2 * 60 // 4


def mixed_with_copies(folder, rows, copied):
    """Settings of a mixture, half of `rows` and half of sixteen copies of one row; of either an epoch, which is a step, has as many as `rows` has."""
    for name, some in {"a": rows, "b": [copied] * 16}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    return {"data.train": f"[{folder / 'a.jsonl'}, {folder / 'b.jsonl'}]", "data.weights": "[1, 1]", "deepspeed.train_batch_size": 2 * len(rows),
            "output": folder / "out"}


def test_labelled_rows_are_mixed(tmp_path):
    model = test_classification.make_model(tmp_path, "Bert", **test_classification.labelled())
    *rows, copied = test_classification.rows_of(7, 1)
    result = train(test_classification.run_of(tmp_path), 2, mixed_with_copies(tmp_path, rows, copied))
    assert "an epoch has 12 samples, of the entries of data.train 6, 6" in result.err, str(result)
    want = test_classification.train_in_torch(model, rows + [copied] * 6, test_classification.STEPS)
    assert [row["loss"] for row in metrics(tmp_path / "out")] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("adapter", [{}, {"adapter.rank": 4}], ids=["table", "adapter"])
def test_preferences_are_mixed(tmp_path, adapter):
    """Also where what the reference gives each pair is found in a table."""
    model, run_file, settings = test_dpo.preference_run(tmp_path)
    mixture = mixed_with_copies(tmp_path, test_dpo.TEXTS[:6], test_dpo.TEXTS[6])
    result = train(run_file, 2, {**settings, **mixture, **adapter})
    assert "an epoch has 12 samples, of the entries of data.train 6, 6" in result.err, str(result)
    if not adapter:
        want = test_dpo.trained_by_torch(model, pairs=test_dpo.PAIRS[:6] + [test_dpo.PAIRS[6]] * 6)
        assert test_dpo.losses(tmp_path / "out") == pytest.approx(want, rel=1e-5)


def test_a_mixture_goes_on_with_the_same_samples(tmp_path, tiny_run):
    run_file = mixture(tmp_path, tiny_run, [1, 2])
    train(run_file, 2, {"output": tmp_path / "whole"})
    train(run_file, 2, {"output": tmp_path / "parts", "training.max_steps": 10})
    train(run_file, 2, {"output": tmp_path / "parts"}, resume="auto")
    assert losses_and_norms(tmp_path / "whole")[-3:] == losses_and_norms(tmp_path / "parts")[-3:]


def test_a_mixture_goes_on_with_the_same_samples_on_another_number_of_ranks(tmp_path, tiny_run):
    """Also in its second epoch, which takes other samples of the second entry."""
    run_file = mixture(tmp_path, tiny_run, [1, 2])
    train(run_file, 2, {"output": tmp_path / "whole", "model.dropout": 0})
    train(run_file, 2, {"output": tmp_path / "parts", "model.dropout": 0, "training.max_steps": 10})
    train(run_file, 1, {"output": tmp_path / "parts", "model.dropout": 0}, resume="auto")
    whole, parts = ([row["loss"] for row in metrics(tmp_path / name)] for name in ("whole", "parts"))
    assert len(whole) == 2 * 23 and parts == pytest.approx(whole, rel=1e-5)
    assert whole[23:45] != pytest.approx(whole[:22], rel=1e-2)


@pytest.mark.parametrize("settings, said", [
    ({"data.weights": "[1]"}, "'data.weights' has 1, but 'data.train' has 2"),
    ({"data.weights": "[1, 0]"}, "data.weights"),
    ({"data.weights": "[1000, 1]"}, "less than one sample"),
    ({"data.eval_share": "0.5"}, "name held-out data with data.eval"),
])
def test_a_mixture_that_cannot_be(tmp_path, tiny_run, settings, said):
    run_file = mixture(tmp_path, tiny_run, [1, 2])
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    result = tessera("train", run_file, "--nproc", 1, *words)
    assert result.code == 2 and said in result.err, result
