"""`tensor_parallel.autotp_size` through the Trainer: cut_model_runs.py is the program, on two ranks."""

from pathlib import Path

import pytest
from ranks import run_for_json


@pytest.mark.parametrize("stage", [1, 3])
def test_the_trainer_s_losses_are_those_of_the_whole_model(stage):
    run = run_for_json(Path(__file__).with_name("cut_model_runs.py"), stage, timeout=300)
    assert run["cut"] >= 16
    assert len(run["found"]) == 8
    assert run["found"] == pytest.approx(run["expected"], rel=1e-5)
    assert run["resumed"] == run["found"]
    assert run["weights"] < 1e-4
