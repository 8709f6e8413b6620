"""Python is called for each unit, not for each parameter: what a step of many small parameters spends is C++'s
(DeepSpeed's issue #7885; the time beside DDP's is in docs/performance.md)."""

from pathlib import Path

import pytest
from ranks import run_for_json


@pytest.fixture(scope="module")
def calls():
    return run_for_json(Path(__file__).with_name("callback_runs.py"))


@pytest.mark.parametrize("stage", range(4))
def test_a_step_of_ten_times_the_parameters_in_as_many_modules_calls_as_many_functions(calls, stage):
    few, many = calls[str(stage)]["50"], calls[str(stage)]["500"]
    assert sum(few.values()) > 20  # the step itself is counted
    assert many == few


def test_modules_of_which_all_is_whole_at_stage_3_are_not_announced(calls):
    announced = "forward_hooks.py: before: call"
    assert calls["3"]["50"][announced] == 6  # the model's, and each of five blocks'
    assert calls["3, whole"]["50"][announced] == 1
