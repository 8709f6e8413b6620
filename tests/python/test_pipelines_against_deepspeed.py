"""A program with a pipeline beside DeepSpeed 0.19.8's own: the same losses, and the same of an evaluation."""

from pathlib import Path

import pytest
from peers import largest_difference, needs_deepspeed, run_deepspeed_for_json
from pipeline_cases import CASES
from ranks import run_for_json

pytestmark = needs_deepspeed


@pytest.fixture(scope="module")
def runs():
    program = Path(__file__).with_name("pipeline_peer_runs.py")
    return run_for_json(program, timeout=600), run_deepspeed_for_json(program, timeout=1200)


@pytest.mark.parametrize("name", CASES)
def test_same_losses(runs, figure, name):
    ours, theirs = (run[name] for run in runs)
    assert figure(f"pipeline, {name}", largest_difference(ours[0], theirs[0])) <= 1e-5
    assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
    assert abs(theirs[0][-1] / theirs[0][0] - 1) > 0.002
