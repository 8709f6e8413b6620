"""Data efficiency beside DeepSpeed 0.19.8's own: the same bytes of files, samples of each rank, batches and learning rates."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from data_sampling_peer_runs import BATCHINGS, CURRICULA
from peers import largest_difference, needs_deepspeed, run_deepspeed_for_json
from ranks import run_for_json

pytestmark = needs_deepspeed
PROGRAM = Path(__file__).with_name("data_sampling_peer_runs.py")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")


@pytest.fixture(scope="module")
def runs(folders):
    ours, theirs = folders
    return run_for_json(PROGRAM, ours, timeout=600), run_deepspeed_for_json(PROGRAM, theirs, timeout=1200)


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("part", ["indexed", "metrics", "metrics-of-four", "metrics-renumbered", "metrics-of-ranks", "clusters"])
def test_the_same_files_to_the_byte(runs, folders, part):
    """But for what DeepSpeed's processes that merge leave behind, *_thread0.* and so on."""
    ours, theirs = (files_of(folder / part) for folder in folders)
    theirs = {name: content for name, content in theirs.items() if not Path(name).stem.rpartition("_")[2].startswith("thread")}
    assert ours.keys() == theirs.keys() and len(ours) > 5
    assert [name for name in ours if ours[name] != theirs[name]] == []


@pytest.mark.parametrize("name", CURRICULA)
def test_every_rank_draws_the_same_samples(runs, name):
    for ours, theirs in zip(*runs):
        assert ours["drawn"][name] == theirs["drawn"][name]


def test_a_training_draws_the_same_samples(runs):
    for ours, theirs in zip(*runs):
        (samples, losses, difficulties), (their_samples, their_losses, their_difficulties) = (zip(*run["trained"]) for run in (ours, theirs))
        assert samples == their_samples and difficulties == their_difficulties
        assert largest_difference(losses, their_losses) <= 1e-5


@pytest.mark.parametrize("saved_by", ["ours", "theirs"])
def test_checkpoints_go_on_either_way(runs, folders, tmp_path, saved_by):
    """From DeepSpeed's checkpoint both draw alike, by random numbers that start over. Cluster files are written on, so each run has its own."""
    found = {}
    for by, run in (("ours", run_for_json), ("theirs", run_deepspeed_for_json)):
        folder = shutil.copytree(folders[saved_by == "theirs"], tmp_path / by)
        found[by] = run(PROGRAM, folder, folder / "checkpoint")
    for ours, theirs in zip(found["ours"], found["theirs"]):
        assert ours["steps"] == theirs["steps"] == 12
        assert ours["state"] == theirs["state"] and ours["state"]["curriculum_step"] == 12
        assert ours["trained"][0][2] == theirs["trained"][0][2] == 64
        if saved_by == "theirs":
            assert [step[0] for step in ours["trained"]] == [step[0] for step in theirs["trained"]]


@pytest.mark.parametrize("name", BATCHINGS)
def test_the_same_batches_by_tokens(runs, name):
    """DeepSpeed never takes the last sample, which may fill up the last batch or make another."""
    ours, theirs = (run[0]["batched"][name] for run in runs)
    whole, side_by_side = len(theirs[1]) - 1, BATCHINGS[name]["effective_batch_size"]
    assert whole > 10 and 0 <= len(ours[1]) - len(theirs[1]) <= 1
    assert ours[0][:whole * side_by_side] == theirs[0][:whole * side_by_side]
    assert [each[:whole] for each in ours[1:]] == [each[:whole] for each in theirs[1:]]


def test_the_same_learning_rates(runs):
    ours, theirs = (run[0]["rates"] for run in runs)
    for name in theirs:
        assert np.allclose(ours[name], theirs[name], rtol=1e-12, atol=0), name
