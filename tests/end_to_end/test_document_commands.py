"""The configurations and commands of the documents that people learn DeepSpeed from, as they stand."""

from pathlib import Path

from tessera_runs import REPOSITORY, losses_and_norms, metrics, tessera, train, write_run_file

DOCUMENT_004 = REPOSITORY / "tests" / "config" / "configs" / "document_004_bert.json"


def run_with(ds_config, tiny_run, tmp_path, **training):
    return write_run_file(tmp_path, {**tiny_run, "deepspeed": str(ds_config), "training": {"max_steps": 4, **training}})


def test_document_004_trains_on_four_ranks(tiny_run, tmp_path):
    """BERT with stage 3, Adam, a batch of 4 = 1 x 1 x 4 ranks; its ds_config.json has comments."""
    assert "// " in DOCUMENT_004.read_text()
    train(run_with(DOCUMENT_004, tiny_run, tmp_path), 4, {"output": tmp_path / "out"})
    lines = metrics(tmp_path / "out")
    assert [line["samples"] for line in lines] == [4, 8, 12, 16]
    assert {line["lr"] for line in lines} == {1e-4}


def test_document_004_has_the_bits_of_stage_0(tiny_run, tmp_path):
    run_file = run_with(DOCUMENT_004, tiny_run, tmp_path)
    train(run_file, 4, {"output": tmp_path / "out3"})
    train(run_file, 4, {"output": tmp_path / "out0", "deepspeed.zero_optimization.stage": 0})
    assert losses_and_norms(tmp_path / "out3") == losses_and_norms(tmp_path / "out0")


def test_document_004_on_another_number_of_ranks_says_what_does_not_multiply(tiny_run, tmp_path):
    """The document's own warning: the batch size must be micro x accumulation x ranks."""
    run_file = run_with(DOCUMENT_004, tiny_run, tmp_path)
    result = tessera("train", run_file, "--nproc", 2, "--set", f"output={tmp_path / 'out'}")
    assert result.code == 2, str(result)
    for fragment in ("train_batch_size", "4", "1", "2"):
        assert fragment in result.err, str(result)


def test_a_training_of_epochs_saves_and_evaluates_at_the_end_of_each(tiny_run, tmp_path, texts):
    """400 texts, 20 a step: 20 steps an epoch."""
    tiny_run["data"]["eval"] = str(texts / "held_back.parquet")
    tiny_run["training"] = {"epochs": 3, "keep_last": 2, "eval_at_start": True}
    tiny_run["deepspeed"]["train_batch_size"] = 20
    result = train(write_run_file(tmp_path, tiny_run), 2, {"output": tmp_path / "out"})
    lines = metrics(tmp_path / "out")
    assert len(lines) == 60
    assert [lines[step - 1]["epoch"] for step in (20, 40, 60)] == [1, 2, 3]
    kept = sorted(path.name for path in (tmp_path / "out" / "checkpoints").iterdir() if path.is_dir())
    assert kept == ["global_step40", "global_step60"]
    assert [text for text in result.err.splitlines() if "held-out loss" in text and "step 20" in text]
    before, after = result.out.split("loss on held-out text")[1].split("\n")[0].replace(",", "").split()[0::2]
    assert float(after) < float(before)


def test_a_path_in_the_run_file_is_relative_to_it(tiny_run, tmp_path, tiny_bert, texts):
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "model").symlink_to(tiny_bert)
    (folder / "data").symlink_to(texts)
    tiny_run["model"]["path"], tiny_run["data"]["train"] = "model", "data/train.parquet"
    tiny_run["training"]["max_steps"] = 1
    write_run_file(folder, tiny_run)
    train(Path("runs/run.yaml"), 1, cwd=tmp_path)
    assert len(metrics(folder / "out")) == 1


def test_held_back_loss_does_not_depend_on_the_number_of_ranks(tiny_run, tmp_path, texts):
    """58 texts do not divide by 4 ranks nor by the micro batch."""
    lines = [f"ba be bi bo {word}\n" for word in ["bu da", "de di do", "du"] * 20][:58]
    (tmp_path / "held_back.txt").write_text("".join(lines))
    tiny_run["data"]["eval"] = str(tmp_path / "held_back.txt")
    tiny_run["training"].update(max_steps=1, eval_at_start=True)
    run_file = write_run_file(tmp_path, tiny_run)
    reported = [train(run_file, ranks, {"output": tmp_path / f"out{ranks}", "deepspeed.zero_optimization.stage": 3})
                .out.split("held-out text")[1].split()[0] for ranks in (1, 2, 4)]
    assert float(reported[0]) == float(reported[1]) == float(reported[2])
