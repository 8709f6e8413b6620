"""`tessera train --max-restarts`: a run in which a rank dies goes on by itself, from the newest checkpoint that is whole."""

import os
import re
import signal

import pytest
from tessera_runs import (finish, largest_difference, losses_and_norms, metrics, rank_pids, start, steps_done, train, train_arguments,
                          wait_until, write_run_file)

STEPS = 30  # below an epoch, whose last step has what is left, dealt out by the number of ranks


@pytest.fixture(scope="module")
def folder(tiny_bert, texts, tmp_path_factory):
    """run.yaml: a tiny model at stage 2 without dropout, whose masks differ by rank; `ranks3` is 30 steps that nothing stopped."""
    folder = tmp_path_factory.mktemp("restarts")
    run_file = write_run_file(folder, {
        "model": {"path": str(tiny_bert), "init": "pretrained", "dropout": 0},
        "task": "mlm",
        "data": {"train": str(texts / "train.parquet"), "max_length": 32},
        "training": {"max_steps": STEPS, "save_steps": 3},
        "deepspeed": {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2},
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
    })
    train(run_file, 3, {"output": folder / "ranks3", "training.save_steps": 0})
    return folder


def start_run(folder, output, *flags):
    return start(*train_arguments(folder / "run.yaml", 3, {"output": output}), *flags)


def kill_a_rank(launcher, output, rank, after):
    """Of the life that is running, once it has done `after` steps."""
    wait_until(lambda: steps_done(output) >= after, f"{after} steps")
    victim = rank_pids(launcher.pid)[rank]
    os.kill(victim, signal.SIGKILL)
    return victim


def test_a_run_that_loses_ranks_goes_on_to_the_same_bits(folder, tmp_path):
    output = tmp_path / "out"
    launcher = start_run(folder, output, "--max-restarts", 2)
    first = kill_a_rank(launcher, output, rank=1, after=7)
    wait_until(lambda: len(pids := rank_pids(launcher.pid)) == 3 and first not in pids.values(), "the second life")
    kill_a_rank(launcher, output, rank=0, after=20)
    result = finish(launcher)
    assert result.code == 0, str(result)
    assert "restart 1 of 2\n" in result.err and "restart 2 of 2\n" in result.err, str(result)
    assert len(re.findall(r"^\[rank 0\] info: resumed", result.err, re.MULTILINE)) == 2, str(result)
    assert losses_and_norms(output) == losses_and_norms(folder / "ranks3")


def test_a_run_goes_on_without_the_rank_that_was_killed_on_the_same_batches(folder, tmp_path):
    """The samples of a step stay the same; two ranks add them up in another order, which in fp32 costs up to 2^-24 an addition."""
    output = tmp_path / "out"
    launcher = start_run(folder, output, "--max-restarts", 1, "--min-nproc", 2)
    kill_a_rank(launcher, output, rank=2, after=7)
    result = finish(launcher)
    assert result.code == 0, str(result)
    assert "on 2 ranks instead of 3" in result.err, str(result)
    got, whole = metrics(output), metrics(folder / "ranks3")
    assert [(row["step"], row["samples"], row["tokens"], row["lr"]) for row in got] == \
        [(row["step"], row["samples"], row["tokens"], row["lr"]) for row in whole]
    resumed = int(re.search(r"resumed .* after step (\d+)", result.err)[1])
    assert losses_and_norms(output)[:resumed] == losses_and_norms(folder / "ranks3")[:resumed]
    assert largest_difference(got[resumed:resumed + 10], whole[resumed:resumed + 10]) < 1e-6
    assert losses_and_norms(output)[resumed:] != losses_and_norms(folder / "ranks3")[resumed:], "it ran on as many ranks"


def test_numbers_of_ranks_that_do_not_divide_the_batch_are_passed_over(folder, tmp_path):
    """Three ranks cannot share 20 samples, two can."""
    output = tmp_path / "out"
    launcher = start(*train_arguments(folder / "run.yaml", 4, {"output": output, "deepspeed.train_batch_size": 20, "training.max_steps": 12,
                                                               "deepspeed.train_micro_batch_size_per_gpu": 1}),
                     "--max-restarts", 1, "--min-nproc", 2)
    kill_a_rank(launcher, output, rank=3, after=4)
    result = finish(launcher)
    assert result.code == 0, str(result)
    assert "on 2 ranks instead of 4" in result.err, str(result)


def test_a_run_that_somebody_has_to_put_right_is_not_started_again(folder, tmp_path):
    missing = tmp_path / "missing.parquet"
    launcher = start(*train_arguments(folder / "run.yaml", 2, {"output": tmp_path / "out", "data.train": missing}), "--max-restarts", 3)
    result = finish(launcher)
    assert result.code == 2, str(result)
    assert str(missing) in result.err and "restart" not in result.err, str(result)


def test_a_rank_of_a_launcher_cannot_be_started_again_by_itself(folder, tmp_path):
    result = finish(start("train", folder / "run.yaml", "--max-restarts", 1, env={"RANK": 0, "WORLD_SIZE": 1}))
    assert result.code == 2 and "--max-restarts" in result.err and "rank" in result.err, str(result)
