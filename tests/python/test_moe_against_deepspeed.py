"""A program with experts beside DeepSpeed 0.19.8's own: the same losses."""

from pathlib import Path

import pytest
from moe_cases import CASES
from peers import largest_difference, needs_deepspeed, run_deepspeed_for_json
from ranks import run_for_json

pytestmark = needs_deepspeed


@pytest.fixture(scope="module")
def runs():
    program = Path(__file__).with_name("moe_peer_runs.py")
    return run_for_json(program, timeout=600), run_deepspeed_for_json(program, timeout=1200)


@pytest.mark.parametrize("name", CASES)
def test_same_losses(runs, figure, name):
    (ours, counts), (theirs, their_counts) = (run[name] for run in runs)
    assert counts == their_counts
    assert figure(f"experts, {name}", largest_difference(ours, theirs)) <= 1e-5
    assert theirs[-1] < 0.9 * theirs[0]
