"""SIGUSR1, by which a scheduler says that the time is up: what a training, its ranks and their launcher make of it."""

import os
import signal

from tessera_runs import (finish, losses_and_norms, rank_pids, start, steps_done, tessera, train, train_arguments, wait_until,
                          write_run_file)

STEPS = 60


def started(tiny_run, folder, *options, ranks=2):
    run_file = write_run_file(folder, {**tiny_run, "training": {"max_steps": STEPS, "seed": 42}})
    launcher = start(*train_arguments(run_file, ranks), *options, cwd=folder)
    wait_until(lambda: steps_done(folder / "out") >= 3, "three steps")
    return run_file, launcher


def assert_goes_on_as_if_nothing_were(run_file):
    train(run_file, 2, resume="auto", cwd=run_file.parent)
    train(run_file, 2, {"output": "whole"}, cwd=run_file.parent)
    assert losses_and_norms(run_file.parent / "out") == losses_and_norms(run_file.parent / "whole")


def test_a_training_saves_and_leaves_with_75_and_goes_on_to_the_same_bits(tiny_run, tmp_path):
    run_file, launcher = started(tiny_run, tmp_path)
    launcher.send_signal(signal.SIGUSR1)
    result = finish(launcher)
    assert result.code == 75 and "the state is saved, and exit code 75 asks to go on later" in result.err, result
    assert "error" not in result.err and 3 <= steps_done(tmp_path / "out") < STEPS
    assert_goes_on_as_if_nothing_were(run_file)


def test_a_process_alone_does_so_too(tiny_run, tmp_path):
    _, alone = started(tiny_run, tmp_path, ranks=1)
    alone.send_signal(signal.SIGUSR1)
    assert finish(alone).code == 75


def test_max_restarts_leaves_another_life_to_the_scheduler(tiny_run, tmp_path):
    """Also where the signal went to ranks alone, which the launcher sees end (scancel --full signals every process)."""
    _, launcher = started(tiny_run, tmp_path, "--max-restarts", 3)
    for pid in rank_pids(launcher.pid).values():
        os.kill(pid, signal.SIGUSR1)
    result = finish(launcher)
    assert result.code == 75 and "not started again: exit code 75" in result.err, result


def test_sigterm_still_ends_a_training_well(tiny_run, tmp_path):
    _, launcher = started(tiny_run, tmp_path)
    launcher.send_signal(signal.SIGTERM)
    result = finish(launcher)
    assert result.code == 0 and "stopped by a signal" in result.err and "exit code 75" not in result.err, result


def test_the_script_is_refused_what_it_cannot_keep(tiny_run, tmp_path):
    run_file = write_run_file(tmp_path, tiny_run)
    for options, what in [(["--resume", "out/checkpoints/global_step3"], "goes on from the newest"),
                          (["--max-restarts", 2], "--max-restarts does not go with --print-sbatch"),
                          (["--launcher", "ssh"], "--print-sbatch is for Slurm, and --launcher ssh is for something else"),
                          (["--set", "model.path=nowhere"], "nowhere")]:
        result = tessera("train", run_file, *options, "--print-sbatch", cwd=tmp_path)
        assert result.code == 2 and what in result.err and result.out == "", result
