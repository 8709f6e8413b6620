"""tessera checkpoint ls, show, verify, diff and prune on the checkpoints of a run."""

import json
import shutil

import pytest
from tessera_runs import tessera, train, train_arguments, write_run_file


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


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


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


def test_verify_reads_every_byte_of_every_checkpoint_of_a_folder(checkpoints, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(checkpoints, folder)
    assert ok("verify", folder).splitlines() == [f"{folder}/global_step{step} is intact" for step in (7, 6, 3)]
    shard = next((folder / "global_step3").glob("shard-*"))
    flip_a_bit(shard)
    result = tessera("checkpoint", "verify", folder)
    assert result.code == 2 and shard.name in result.err and f"where: {folder / 'global_step3'}" in result.err, str(result)
    assert result.out.splitlines() == [f"{folder}/global_step{step} is intact" for step in (7, 6)]


@pytest.mark.parametrize("command", [["ls"], ["prune", "--keep-last", 1]], ids=["ls", "prune"])
def test_what_is_no_folder_of_checkpoints_is_refused(checkpoints, command):
    before = ok("ls", checkpoints)
    result = tessera("checkpoint", *command, checkpoints.parent)
    assert result.code == 2 and f"they are in {checkpoints}" in result.err, str(result)
    result = tessera("checkpoint", *command, checkpoints / "global_step6")
    assert result.code == 2 and "this is a checkpoint itself" in result.err, str(result)
    assert ok("ls", checkpoints) == before


def model_like(tiny_bert, folder, **changes):
    folder.mkdir()
    config = json.loads((tiny_bert / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize("changes, what", [
    ({"num_hidden_layers": 7}, "the model has 'bert.encoder.layer."), ({"num_hidden_layers": 1}, "and the model has not"),
    ({"intermediate_size": 40}, "and the model of [40]"), ({"model_type": "gpt2"}, "it is a BertForMaskedLM, and here is a 'gpt2'"),
], ids=["deeper", "less deep", "wider", "of another type"])
def test_an_export_with_another_models_configuration_is_refused(checkpoints, tiny_bert, tmp_path, changes, what):
    other = model_like(tiny_bert, tmp_path / "other", **changes)
    result = tessera("checkpoint", "export", checkpoints, "--to", tmp_path / "out", "--model", other)
    assert result.code == 2 and "the checkpoint is of another model: " in result.err and what in result.err, str(result)
    assert not (tmp_path / "out").exists()


def test_an_export_takes_a_copy_of_the_models_folder(checkpoints, tiny_bert, tmp_path):
    ok("export", checkpoints, "--to", tmp_path / "out", "--model", model_like(tiny_bert, tmp_path / "copy"))
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (checkpoints.parent / "export" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("command", [["export", "."], ["merge", "."]], ids=["export", "merge"])
def test_a_folder_without_a_name_is_refused(command):
    result = tessera("checkpoint", *command, "--to", "")
    assert result.code == 2 and "the folder to write has no name" in result.err and "--to" in result.err, str(result)


def test_a_resume_with_another_model_is_one_error(checkpoints, tiny_bert, tmp_path):
    """Of `auto`, which has tried each."""
    shutil.copytree(checkpoints.parent, tmp_path / "out")
    other = model_like(tiny_bert, tmp_path / "other", num_hidden_layers=7)
    settings = {"output": tmp_path / "out", "model.path": other, "model.init": "random", "tokenizer": tiny_bert, "training.max_steps": 9}
    result = tessera(*train_arguments(checkpoints.parent.parent / "run.yaml", 1, settings, "auto"))
    assert result.code == 2, str(result)
    said = result.err[result.err.index("error: "):]
    assert "none of the 3 checkpoints here can be used; the newest: the checkpoint belongs to another model: " in said, str(result)
    assert said.count("where:") == said.count("fix:") == 1 and "resume with the model that they are of" in said, str(result)


def test_verify_reads_every_byte_of_an_exported_folder(checkpoints, tmp_path):
    folder = tmp_path / "export"
    shutil.copytree(checkpoints.parent / "export", folder)
    assert f"{folder} is intact" in ok("verify", folder)
    (folder / "notes.txt").write_text("whatever else is there does not matter")
    assert f"{folder} is intact" in ok("verify", folder)
    for name in ("model.safetensors", "vocab.txt"):
        flip_a_bit(folder / name)
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
