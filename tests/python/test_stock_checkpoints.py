"""engine.load_checkpoint of checkpoints that DeepSpeed itself wrote: recorded ones, and one that goes on beside DeepSpeed."""

import shutil
from pathlib import Path

import pytest
import torch
from peers import largest_difference, needs_deepspeed, run_deepspeed_for_json
from ranks import ROOT, run_for_json

HERE = Path(__file__).resolve().parent
RECORDED = ROOT / "tests" / "python" / "recorded"
CASES = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
EPOCH = 7


@pytest.fixture(scope="module", params=[1, 2, 3])
def runs(request, tmp_path_factory):
    """As so many ranks; 2 ranks wrote the checkpoints. What clients of DeepSpeed add to them is added."""
    folder = tmp_path_factory.mktemp(f"{request.param}_ranks")
    for name in CASES:
        shutil.copytree(RECORDED / name, folder / name)
        groups = 1 if name.startswith("zero0") else 2
        for path in (folder / name).glob("*/*mp_rank_00_model_states.pt"):
            content = torch.load(path, weights_only=False)
            content["lr_scheduler"] = {"last_epoch": EPOCH, "_step_count": EPOCH + 1, "base_lrs": [0.5] * groups,
                                       "_last_lr": [0.125] * groups, "lr_lambdas": [None] * groups}
            torch.save({**content, "epoch": 2, "notes": {"of": ["the", "client"]}}, path)
    shutil.copytree(folder / "zero2_bf16", folder / "broken")
    next((folder / "broken").glob("*/*zero_pp_rank_1_*")).unlink()
    found = run_for_json(HERE / "stock_checkpoint_runs.py", folder, *CASES, count=request.param, timeout=600)
    left = [path for path in folder.rglob("*import*")]
    return folder, found, left


@pytest.mark.parametrize("name", CASES)
def test_every_weight_and_moment_at_every_stage(runs, name):
    for stage in "0123":
        found = runs[1][name][stage]
        assert found["differs"] == [], f"stage {stage}"
        assert found["seen"] == [0, 1, 2]  # the buffer
        assert found["next"] == [6, True]


@pytest.mark.parametrize("name", CASES)
def test_counts_groups_schedule_and_client_state(runs, name):
    there = torch.load(next((RECORDED / name).glob("*/*mp_rank_00_model_states.pt")), weights_only=False)
    for found in runs[1][name].values():
        assert found["path"] == str(runs[0] / name / "global_step5")
        assert found["client"] == {"epoch": 2, "notes": {"of": ["the", "client"]}}
        assert (found["steps"], found["skipped"], found["samples"]) == (5, there["skipped_steps"], there["global_samples"])
        assert found["epoch"] == EPOCH
        if name != "zero2_elastic":  # which keeps no groups
            assert found["lr"] == [0.01] * len(found["lr"])
            assert found["decay"] == [0.1, 0.0][:len(found["decay"])]
        if name == "zero2_fp16":
            assert found["scale"] == 2.0 ** (18 - there["skipped_steps"])


def test_the_module_alone(runs):
    found = runs[1]["module only"]
    assert found["differs"] == [] and found["seen"] == [0, 1, 2]
    assert (found["steps"], found["moments"], found["lr"], found["epoch"]) == (0, 0, [0.5, 0.5], 0)
    assert found["client"]["epoch"] == 2


def test_without_the_optimizers_states(runs):
    found = runs[1]["no optimizer"]
    assert found["differs"] == []
    assert (found["steps"], found["moments"], found["lr"]) == (5, 0, [0.5, 0.5])
    assert found["epoch"] == EPOCH


def test_without_the_schedule(runs):
    found = runs[1]["no schedule"]
    assert found["differs"] == [] and found["moments"] > 0
    assert found["epoch"] == 0


def test_a_missing_file_is_one_error_on_every_rank(runs):
    message = runs[1]["broken"]
    assert "rank 1's file is missing" in message or "there are files from 1" in message
    assert "\n  where: " in message and "\n  fix:   " in message


def test_nothing_is_left_beside_the_checkpoints(runs):
    assert runs[2] == []


@pytest.mark.parametrize("stage", [pytest.param(stage, marks=needs_deepspeed) for stage in (1, 2, 3)])
def test_goes_on_as_deepspeed_does(peer_losses, figure, stage):
    """The losses after the save: of the loaded weights, then of a step with the loaded moments and rate, and of one more."""
    folder, theirs = peer_losses
    ours = run_for_json(HERE / "stock_checkpoint_peer.py", "load", folder, stage)
    assert ours["client"] == {"epoch": 3}
    name = f"fp32, stage {stage}, goes on from DeepSpeed's checkpoint"
    assert figure(name, largest_difference(ours["losses"], theirs[str(stage)]["losses"])) <= 1e-5
    assert ours["lr"] == pytest.approx(theirs[str(stage)]["lr"], rel=1e-12)


@pytest.fixture(scope="module")
def peer_losses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    return folder, run_deepspeed_for_json(HERE / "stock_checkpoint_peer.py", "save", folder)
