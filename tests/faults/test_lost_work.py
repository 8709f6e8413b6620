"""Nothing that was trained is lost to another run in the same output, or to training that diverged."""

import json

import pytest
from tessera_runs import (alive, finish, losses_and_norms, rank_pids, start, steps_done, tessera, train, train_arguments,
                          wait_until, write_run_file)


@pytest.fixture
def run_file(tiny_run, tmp_path):
    tiny_run["training"] = {"max_steps": 40, "save_steps": 2, "keep_last": 2}
    return write_run_file(tmp_path, tiny_run)


def tags(output):
    return sorted(path.name for path in (output / "checkpoints").glob("global_step*"))


def check_refused(result, pid):
    assert result.code == 2, str(result)
    assert f"another run saves into this folder: process {pid} on host" in result.err, str(result)


def test_two_starts_at_once(run_file, tmp_path):
    """One trains, with the bits of a run alone; the other is told who does."""
    output = tmp_path / "out"
    both = [start(*train_arguments(run_file, 2, {"output": output})) for _ in range(2)]
    results = [finish(process) for process in both]
    assert sorted(result.code for result in results) == [0, 2], "\n".join(map(str, results))
    refused = results[0] if results[0].code else results[1]
    assert "another run saves into this folder" in refused.err or "the output already holds a run" in refused.err, str(refused)
    train(run_file, 2, {"output": tmp_path / "alone"})
    assert losses_and_norms(output) == losses_and_norms(tmp_path / "alone")
    assert tags(output) == tags(tmp_path / "alone")


def test_a_requeued_job_while_the_first_lives(run_file, tmp_path):
    settings = {"output": tmp_path / "out", "training.max_steps": 100_000}
    first = start(*train_arguments(run_file, 2, settings))
    try:
        wait_until(lambda: tags(tmp_path / "out") and steps_done(tmp_path / "out") > 4, "a checkpoint")
        ranks = rank_pids(first.pid)
        check_refused(tessera(*train_arguments(run_file, 2, settings, resume="auto")), ranks[0])
        check_refused(tessera("checkpoint", "prune", tmp_path / "out" / "checkpoints", "--keep-last", 1), ranks[0])
        assert alive(ranks.values()) == list(ranks.values())
    finally:
        first.kill()
        finish(first)
    wait_until(lambda: not alive(ranks.values()), "the end of the ranks")
    train(run_file, 2, {**settings, "training.max_steps": steps_done(tmp_path / "out") + 2}, resume="auto")
    assert not (tmp_path / "out" / "checkpoints" / ".tessera.lock").exists()


def test_a_run_that_diverges(run_file, tmp_path):
    """A learning rate that makes the weights overflow; the checkpoints of before are what a run can go on from."""
    output = tmp_path / "out"
    train(run_file, 1, {"output": output, "training.max_steps": 4})
    exported = (output / "export" / "model.safetensors").read_bytes()
    steep = {"output": output, "deepspeed.optimizer.params.lr": 1e30}
    result = tessera(*train_arguments(run_file, 1, steep, resume="auto"))
    assert result.code == 2, str(result)
    assert "training diverged: each of the last 10 steps had a loss or gradients that are not finite" in result.err, str(result)
    assert (output / "export" / "model.safetensors").read_bytes() == exported
    good = [tag for tag in tags(output) if "diverged" not in json.loads((output / "checkpoints" / tag / "manifest.json").read_text())]
    assert good, tags(output)
    train(run_file, 1, {"output": output, "training.max_steps": 6}, resume=output / "checkpoints" / good[0])
