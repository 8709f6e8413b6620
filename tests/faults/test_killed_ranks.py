"""Ranks that die: the launcher says which one, ends the others, and what was saved can be resumed."""

import os
import random
import re
import signal
import time

import pytest
from tessera_runs import (alive, descendants, finish, losses_and_norms, rank_pids, start, steps_done, tessera,
                          train, train_arguments, wait_until, write_run_file)

ALL_GONE_WITHIN = 10  # seconds


@pytest.fixture(scope="module")
def folder(tiny_bert, texts, tmp_path_factory):
    """run.yaml: a tiny model at stage 3 with two ranks, saved after each step; `whole` is 40 steps that nothing stopped."""
    folder = tmp_path_factory.mktemp("killed")
    run_file = write_run_file(folder, {
        "model": {"path": str(tiny_bert), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(texts / "train.parquet"), "max_length": 32},
        "training": {"max_steps": 40, "save_steps": 1},
        "deepspeed": {"train_batch_size": 8, "zero_optimization": {"stage": 3},
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
    })
    train(run_file, 2, {"output": folder / "whole", "training.save_steps": 0})
    return folder


def start_run(folder, output, **settings):
    process = start(*train_arguments(folder / "run.yaml", 2, {"output": output, **settings}))
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_the_run(folder, tmp_path, victim, number):
    output = tmp_path / "out"
    launcher = start_run(folder, output, **{"training.save_steps": 5, "training.max_steps": 5000})
    wait_until(lambda: steps_done(output) >= 7, "seven steps")
    ranks = rank_pids(launcher.pid)
    processes = list(descendants(launcher.pid))
    assert sorted(ranks) == [0, 1]
    killed_at = time.monotonic()
    os.kill(ranks[victim], number)
    result = finish(launcher, timeout=ALL_GONE_WITHIN)
    wait_until(lambda: not alive(processes), "the end of all processes", ALL_GONE_WITHIN - (time.monotonic() - killed_at))

    assert result.code == 128 + number, str(result)
    assert re.search(rf"^error: rank {victim} .*{number.name}", result.err, re.MULTILINE), str(result)
    assert "terminate called" not in result.err, str(result)

    train(folder / "run.yaml", 2, {"output": output, "training.max_steps": 40, "training.save_steps": 0}, resume="auto")
    assert losses_and_norms(output)[:40] == losses_and_norms(folder / "whole")


def test_a_rank_that_is_killed_before_the_first_step_ends_the_run(folder, tmp_path):
    launcher = start_run(folder, tmp_path / "out")
    ranks = wait_until(lambda: (found := rank_pids(launcher.pid)) and len(found) == 2 and found, "two ranks")
    processes = list(descendants(launcher.pid))
    os.kill(ranks[1], signal.SIGKILL)
    result = finish(launcher, timeout=ALL_GONE_WITHIN)
    assert result.code == 137, str(result)
    assert "rank 1" in result.err
    wait_until(lambda: not alive(processes), "the end of all processes", ALL_GONE_WITHIN)


def test_a_rank_that_is_stopped_makes_the_others_give_up_and_say_for_whom_they_waited(folder, tmp_path):
    """A rank that hangs is no rank that dies: only the deadline of the wait finds it."""
    output = tmp_path / "out"
    launcher = start(*train_arguments(folder / "run.yaml", 2, {"output": output, "training.max_steps": 5000,
                                                               "training.save_steps": 0}), env={"TESSERA_TIMEOUT": 3})
    wait_until(lambda: steps_done(output) >= 3, "three steps")
    processes = list(descendants(launcher.pid))
    os.kill(rank_pids(launcher.pid)[1], signal.SIGSTOP)
    result = finish(launcher, timeout=30)
    assert result.code == 1, str(result)
    assert re.search(r"rank 1 .*within 3", result.err), str(result)
    wait_until(lambda: not alive(processes), "the end of all processes", ALL_GONE_WITHIN)


def test_a_launcher_that_is_killed_leaves_no_process(folder, tmp_path):
    output = tmp_path / "out"
    launcher = start_run(folder, output, **{"training.max_steps": 5000, "training.save_steps": 0})
    wait_until(lambda: steps_done(output) >= 3, "three steps")
    processes = list(descendants(launcher.pid))
    assert len(processes) >= 2
    launcher.kill()
    finish(launcher, timeout=ALL_GONE_WITHIN)
    wait_until(lambda: not alive(processes), "the end of all processes", ALL_GONE_WITHIN)


def test_whenever_a_run_is_killed_its_newest_checkpoint_is_whole(folder, tmp_path):
    """Eight kills, one after the other into one output: of one rank or of all at once, at the beginning of a save or
    somewhen, which in a run that saves after each step is in a save as often as not. diffusion-pipe's issue #159,
    SimpleTuner's #2613."""
    output = tmp_path / "out"
    moments = random.Random(7)
    settings = {"output": output, "training.max_steps": 5000}
    for attempt in range(8):
        before = steps_done(output)
        launcher = start(*train_arguments(folder / "run.yaml", 2, settings, "auto"))
        wait_until(lambda: launcher.poll() is not None or steps_done(output) > before, f"attempt {attempt}: a step")
        assert launcher.poll() is None, str(finish(launcher))
        wait_until((output / "checkpoints" / "latest").exists, "the first checkpoint")
        if attempt < 4:
            wait_until(lambda: list((output / "checkpoints").glob("*.saving")), "a save")
        time.sleep(moments.uniform(0, 0.02 if attempt < 4 else 0.1))
        processes = list(descendants(launcher.pid))
        if attempt % 2 == 0:
            launcher.kill()  # all at once
        else:
            os.kill(rank_pids(launcher.pid)[moments.randrange(2)], signal.SIGKILL)
        finish(launcher, timeout=30)
        wait_until(lambda: not alive(processes), "the end of all processes", ALL_GONE_WITHIN)
        latest = (output / "checkpoints" / "latest").read_text().strip()
        result = tessera("checkpoint", "export", output / "checkpoints" / latest, "--to", tmp_path / "exported")
        assert result.code == 0, str(result)
    done = steps_done(output)
    assert done >= 8
    train(folder / "run.yaml", 2, {**settings, "training.max_steps": 40, "training.save_steps": 0}, resume="auto")
    lines = losses_and_norms(output)
    assert lines[:40] == losses_and_norms(folder / "whole")[:len(lines)]
    checkpoints = sorted(path.name for path in (output / "checkpoints").iterdir())
    assert not [name for name in checkpoints if name.endswith(".saving")], checkpoints
