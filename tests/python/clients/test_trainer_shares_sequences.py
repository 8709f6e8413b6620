"""Accelerate's sp_size through the Trainer: shared_sequence_runs.py is the program, on two ranks."""

from pathlib import Path

import pytest
from ranks import run_for_json


@pytest.mark.parametrize("stage", [1, 3])
def test_the_trainer_s_losses_are_those_of_whole_sequences(stage):
    found, expected = run_for_json(Path(__file__).with_name("shared_sequence_runs.py"), stage, timeout=300)
    assert len(found) == 8
    assert found == pytest.approx(expected, rel=1e-5)
