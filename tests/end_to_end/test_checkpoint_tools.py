"""tessera checkpoint ls, show, verify, diff and prune on the checkpoints of a run."""

import shutil

import pytest
from tessera_runs import tessera, train, write_run_file


@pytest.fixture(scope="module")
def checkpoints(tiny_bert, texts, tmp_path_factory):
    """global_step1 to global_step6 of a tiny model, two ranks, every third kept beyond the newest two."""
    folder = tmp_path_factory.mktemp("tools")
    run_file = write_run_file(folder, {
        "model": {"path": str(tiny_bert), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(texts / "train.parquet"), "max_length": 32},
        "training": {"max_steps": 7, "save_steps": 1, "keep_last": 2, "keep_every": 3},
        "deepspeed": {"train_batch_size": 8, "zero_optimization": {"stage": 2},
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
        "output": str(folder / "out"),
    })
    result = train(run_file, 2)
    assert "a checkpoint takes" in result.err and "of optimizer state, in 2 files" in result.err, str(result)
    return folder / "out" / "checkpoints"


def ok(*args):
    result = tessera("checkpoint", *args)
    assert result.code == 0, str(result)
    return result.out


def test_ls_shows_the_newest_first(checkpoints):
    lines = ok("ls", checkpoints).splitlines()
    assert [line.split()[0] for line in lines] == ["global_step7", "global_step6", "global_step3"]
    assert lines[0].endswith("latest") and "2 files" in lines[0], lines


def test_show_lists_tensors_and_who_holds_what(checkpoints):
    text = ok("show", checkpoints / "global_step6")
    assert "step 6, saved by 2 ranks" in text
    assert '"epoch"' in text  # the client state
    bias = next(line for line in text.splitlines() if line.startswith("bert.embeddings.LayerNorm.bias "))
    for fragment in ("weight F32", "exp_avg F32", "exp_avg_sq F32", "rank "):
        assert fragment in bias, bias
    assert any("rank 0: 0+" in line and "rank 1: " in line for line in text.splitlines())  # one that straddles


def test_verify_reads_every_byte(checkpoints):
    assert "global_step7 is intact" in ok("verify", checkpoints)


def test_verify_reads_every_byte_of_an_exported_folder(checkpoints, tmp_path):
    folder = tmp_path / "export"
    shutil.copytree(checkpoints.parent / "export", folder)
    assert f"{folder} is intact" in ok("verify", folder)
    (folder / "notes.txt").write_text("whatever else is there does not matter")
    assert f"{folder} is intact" in ok("verify", folder)
    for name in ("model.safetensors", "vocab.txt"):
        data = bytearray((folder / name).read_bytes())
        data[-2] ^= 1
        (folder / name).write_bytes(data)
    (folder / "config.json").unlink()
    result = tessera("checkpoint", "verify", folder)
    assert result.code == 2, str(result)
    for name in ("model.safetensors", "vocab.txt", "config.json"):
        assert str(folder / name) in result.err, str(result)
    (folder / "checksums.json").unlink()
    result = tessera("checkpoint", "verify", folder)
    assert result.code == 2 and "has no checksums.json" in result.err, str(result)


def test_diff_names_what_differs(checkpoints):
    assert ok("diff", checkpoints, checkpoints / "global_step7") == "no differences\n"
    result = tessera("checkpoint", "diff", checkpoints / "global_step6", checkpoints / "global_step7")
    assert result.code == 1, str(result)
    assert "weight bert.embeddings.LayerNorm.bias: values, " in result.out, str(result)


def test_prune_keeps_what_it_is_told(checkpoints):
    leftover = checkpoints / "global_step5.saving"
    leftover.mkdir()
    assert set(ok("prune", checkpoints, "--keep-last", "1", "--keep-every", "6").splitlines()) == {
        "removed global_step3", "removed global_step5.saving"}
    assert sorted(path.name for path in checkpoints.iterdir()) == ["global_step6", "global_step7", "latest"]


@pytest.mark.parametrize("args", [("ls", "nowhere"), ("show", "nowhere"), ("verify", "nowhere"), ("diff", "nowhere", "."),
                                  ("prune", "nowhere", "--keep-last", "1")])
def test_a_folder_that_is_none_is_an_error(args, tmp_path):
    result = tessera("checkpoint", *args, cwd=tmp_path)
    assert result.code == 2 and "nowhere" in result.err, str(result)
