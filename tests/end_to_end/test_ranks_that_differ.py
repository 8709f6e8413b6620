"""Two ranks of `tessera train`, started one by one, as a hand-written job script would: where they were given different
things, both say which, at once, and nothing is trained."""

import copy
import shutil

import pytest
from model_folders import write_texts
from tessera_runs import finish, free_port, start, write_run_file


def run_ranks(folder, runs, settings=((), ())):
    """The results of rank 0 and rank 1, each with a run file of its own."""
    port = free_port()
    ranks = []
    for rank, run in enumerate(runs):
        env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": port, "TESSERA_TIMEOUT": 30}
        arguments = [word for each in settings[rank] for word in ("--set", each)]
        ranks.append(start("train", write_run_file(folder / f"rank{rank}", run), *arguments, env=env))
    return [finish(rank, timeout=60) for rank in ranks]


def expect_refusal(results, what):
    for result in results:
        assert result.code == 2, str(result)
        assert what in result.err, str(result)
        assert "within" not in result.err, str(result)  # no time-out


@pytest.fixture
def run(tiny_run, tmp_path):
    tiny_run["output"] = str(tmp_path / "out")
    return tiny_run


@pytest.mark.parametrize("setting, fact", [
    ("training.seed=7", "run file than rank 0: training.seed = 7; rank 0: training.seed = 42"),
    ("data.mlm_probability=0.5", "run file than rank 0: data.mlm_probability = 0.5; rank 0: data.mlm_probability = 0.15"),
    ("model.dropout=0.3", "run file than rank 0: model.dropout = 0.3; rank 0: model.dropout = null"),
    ("training.save_steps=5", "run file than rank 0: training.save_steps = 5; rank 0: training.save_steps = 0"),
    ("deepspeed.optimizer.params.lr=0.1", "configuration than rank 0: optimizer.params.lr = 0.1; rank 0: optimizer.params.lr"),
    ("deepspeed.zero_optimization.stage=3",
     "configuration than rank 0: zero_optimization.stage = 3; rank 0: zero_optimization.stage = 0"),
])
def test_a_setting(run, tmp_path, setting, fact):
    expect_refusal(run_ranks(tmp_path, [run, run], settings=((), (setting,))), "rank 1 has another " + fact)
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_other_text(run, tmp_path, texts):
    """Of the same name and size, on another host."""
    other = copy.deepcopy(run)
    (tmp_path / "host1").mkdir()
    write_texts(tmp_path / "host1" / "train.parquet", 400, seed=3)
    other["data"]["train"] = str(tmp_path / "host1" / "train.parquet")
    expect_refusal(run_ranks(tmp_path, [run, other]), "rank 1 has another file of data than rank 0: data.train: train.parquet of")


def test_other_weights(run, tmp_path, tiny_bert):
    other = copy.deepcopy(run)
    copied = tmp_path / "copy"
    shutil.copytree(tiny_bert, copied)
    weights = copied / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    other["model"]["path"] = str(copied)
    expect_refusal(run_ranks(tmp_path, [run, other]), "rank 1 has another model or tokenizer than rank 0: model.path: model.safetensors")


def test_the_same_files_in_another_place_train(run, tmp_path, tiny_bert):
    other = copy.deepcopy(run)
    shutil.copytree(tiny_bert, tmp_path / "copy")
    other["model"]["path"] = str(tmp_path / "copy")
    for result in run_ranks(tmp_path, [run, other]):
        assert result.code == 0, str(result)
    assert (tmp_path / "out" / "checkpoints" / "latest").exists()
