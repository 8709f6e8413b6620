"""What is checked before ranks start, and what is offered afterwards, is of the mesh that the run file asks for."""

import json
import shlex

import pytest
from test_causal_lm import run_of
from tessera_runs import TESSERA, tessera, train

TENSOR, PIPELINE = ["--set", "parallel.tensor=2"], ["--set", "parallel.pipeline=2"]


def config_check(run_file, ranks, *words):
    return tessera("config", "check", run_file, "--world-size", ranks, "--json", *words)


def test_batch_sizes_are_those_of_ranks_with_samples_of_their_own(tmp_path):
    _, run_file = run_of(tmp_path, "llama")
    batch = ["--set", "deepspeed.train_batch_size=8", "--set", "deepspeed.train_micro_batch_size_per_gpu=2"]
    result = config_check(run_file, 8, *TENSOR, *PIPELINE, *batch)
    assert result.code == 0 and json.loads(result.out)["batch"] == {"global": 8, "micro": 2, "accumulation": 2}, str(result)
    odd = ["--set", "deepspeed.train_batch_size=3", "--set", "deepspeed.train_micro_batch_size_per_gpu=1"]
    result = config_check(run_file, 2, *TENSOR, *odd)
    assert result.code == 0 and json.loads(result.out)["batch"] == {"global": 3, "micro": 1, "accumulation": 3}, str(result)
    result = config_check(run_file, 2, *odd)
    assert result.code == 2 and "cannot be split evenly over 2 data-parallel ranks" in result.err, str(result)


@pytest.mark.parametrize("words", [["config", "check", "--world-size", 4], ["train", "--nproc", 4, "--dry-run"]], ids=["check", "dry run"])
def test_groups_of_zero_plus_plus_that_ranks_do_not_make_are_refused(tmp_path, words):
    _, run_file = run_of(tmp_path, "llama")
    settings = ["--set", "deepspeed.zero_optimization.stage=3", "--set", "deepspeed.zero_optimization.zero_hpz_partition_size=3",
                "--set", "deepspeed.train_batch_size=4"]
    result = tessera(*words, run_file, *settings)
    assert result.code == 2 and "do not make groups of 3" in result.err and "use one of 1, 2, 4" in result.err, str(result)


def test_every_command_that_a_run_of_several_ranks_offers_works(tmp_path):
    _, run_file = run_of(tmp_path, "llama")
    result = train(run_file, 2, {"parallel.tensor": 2, "training.max_steps": 2, "output": tmp_path / "out"})
    offered = [shlex.split(line) for line in result.out.partition("try next\n")[2].splitlines()]
    assert [words[1] for words in offered] == ["train", "checkpoint", "config"], str(result)
    for words in offered:
        assert words[0] in ("tessera", str(TESSERA)), str(result)
        again = tessera(*words[1:])
        assert again.code == 0, str(again)


def test_a_run_of_512_ranks_is_checked_on_one_host_before_any_is_there(tmp_path):
    """64 hosts of 8 ranks each, of whose memory this one has a host's share: 8 ranks with 9 M parameters at stage 0 have 1 GB, 512 would have 70."""
    _, run_file = run_of(tmp_path, "llama")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config |= {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "train.txt").write_text(100 * (tmp_path / "train.txt").read_text())  # samples for all of them
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"node{number:02} slots=8\n" for number in range(64)))

    def dry_run(*settings):
        words = [word for setting in ("model.init=random", *settings) for word in ("--set", setting)]
        return tessera("train", run_file, "--hostfile", hosts, "--dry-run", *words)
    result = dry_run("deepspeed.train_batch_size=512")
    assert result.code == 0 and "stage 0 on 512 ranks" in result.out, str(result)
    assert "512 samples per step: micro batch 1 x 1 accumulation step x 512 ranks" in result.out, str(result)
    shared = ["parallel.tensor=4", "parallel.pipeline=2", "deepspeed.zero_optimization.stage=1"]
    result = dry_run("deepspeed.train_batch_size=256", "deepspeed.gradient_accumulation_steps=4", *shared)
    assert result.code == 0 and "256 samples per step: micro batch 1 x 4 accumulation steps x 64 ranks" in result.out, str(result)
    result = dry_run("deepspeed.train_batch_size=512", "parallel.tensor=3")
    assert result.code == 2 and "512 ranks do not factor into" in result.err, str(result)
