"""`tessera train` over two hosts, which a script named ssh stands for, is the run that --nproc starts on one."""

import pytest
from tessera_runs import REPOSITORY, environment, free_port, losses_and_norms, tessera, train, write_run_file


@pytest.fixture
def hosts(tmp_path):
    """(options, environment) that start one rank on each of two hosts."""
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1\n")
    (tmp_path / "ssh").symlink_to(REPOSITORY / "tests" / "support" / "fake_ssh")
    options = ["--hostfile", tmp_path / "hosts", "--master_addr", "127.0.0.1", "--master_port", free_port()]
    # The number of threads decides in which order a product adds up: a host of one rank would give it all cores.
    return options, {"FAKE": tmp_path, "PATH": f"{tmp_path}:{environment()['PATH']}", "OMP_NUM_THREADS": 1}


@pytest.fixture
def run_file(tiny_bert, texts, tmp_path):
    return write_run_file(tmp_path, {
        "model": {"path": str(tiny_bert), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(texts / "train.parquet"), "max_length": 32},
        "training": {"max_steps": 5},
        "deepspeed": {"train_batch_size": 8, "zero_optimization": {"stage": 2},
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
    })


def test_two_hosts_train_as_two_ranks_of_one(hosts, run_file, tmp_path):
    options, env = hosts
    train(run_file, 2, {"output": tmp_path / "one"}, env=env)
    result = tessera("train", run_file, *options, "--set", f"output={tmp_path / 'two'}", cwd=tmp_path, env=env)
    assert result.code == 0, str(result)
    assert [line.split(":")[0] for line in (tmp_path / "asked").read_text().splitlines()] in (["a", "b"], ["b", "a"])
    assert losses_and_norms(tmp_path / "two") == losses_and_norms(tmp_path / "one")


def test_a_mistake_is_told_once_and_reaches_no_host(hosts, run_file, tmp_path):
    options, env = hosts
    result = tessera("train", run_file, *options, "--set", "training.max_stepz=1", cwd=tmp_path, env=env)
    assert result.code == 2 and result.err.count("error:") == 1, str(result)
    assert not (tmp_path / "asked").exists()


def test_a_signal_ends_the_start_of_ranks(tmp_path):
    """Rank 0 sends it to the launcher, which has most of the others still to start: none comes after it, whom nobody would tell to end."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\n: > "started.$RANK"\n[ "$RANK" = 0 ] && kill -TERM "$PPID"\nexec sleep 600\n')
    program.chmod(0o755)
    result = tessera("launch", "--nproc", 400, "--no_python", program, cwd=tmp_path)
    assert "SIGTERM: the ranks have" in result.err and "had to be killed" not in result.err, str(result)
    assert (tmp_path / "started.0").exists()
