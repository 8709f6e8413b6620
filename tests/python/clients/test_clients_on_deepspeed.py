"""The programs of test_accelerate.py and test_trainer.py on DeepSpeed itself, beside the same programs on Tessera."""

import pytest
from peers import largest_difference, needs_deepspeed, run_client_for_json
from ranks import run_for_json

pytestmark = needs_deepspeed
LOSS = 1e-5
ACCELERATE = [*(f"stage {stage}" for stage in range(4)), "offloaded", "named in the configuration",
              "named in the configuration, offloaded"]


def both(tmp_path_factory, program, *arguments):
    return [run(program, tmp_path_factory.mktemp("run"), *arguments, timeout=600) for run in (run_for_json, run_client_for_json)]


@pytest.fixture(scope="module")
def accelerate_runs(tmp_path_factory, here):
    return both(tmp_path_factory, here / "accelerate_runs.py")


@pytest.fixture(scope="module")
def trainer_runs(tmp_path_factory, here):
    return both(tmp_path_factory, here / "trainer_runs.py", "gpt2")


@pytest.mark.parametrize("case", ACCELERATE)
def test_accelerate(accelerate_runs, figure, case):
    ours, theirs = (runs[case] for runs in accelerate_runs)
    assert figure(f"fp32, Accelerate, {case}", largest_difference(ours["loss"], theirs["loss"])) <= LOSS
    assert largest_difference(ours["resumed"], theirs["resumed"]) <= LOSS
    assert ours["lr"] == theirs["lr"]


@pytest.mark.parametrize("stage", range(4))
def test_trainer(trainer_runs, figure, stage):
    ours, theirs = (runs["gpt2"][str(stage)] for runs in trainer_runs)
    for run in ("whole", "resumed"):
        for what in ("loss", "eval_loss"):
            difference = largest_difference(ours[run][what], theirs[run][what])
            assert difference <= LOSS, f"{run}, {what}"
    figure(f"fp32, Trainer, stage {stage}", largest_difference(ours["whole"]["loss"], theirs["whole"]["loss"]))
