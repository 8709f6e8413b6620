"""torch.compile around or, at stage 3, between what the engine does: the numbers of the same model uncompiled."""

from pathlib import Path

import pytest
from ranks import run_for_json


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("compiled_runs.py"))


@pytest.mark.parametrize("case", ["0", "1", "2", "3", "recomputed"])
def test_a_compiled_model_trains_as_the_model_itself(runs, case):
    found = runs[case]
    assert found["compiled"] == pytest.approx(found["plain"], rel=1e-6)
    assert found["plain"][-1] != found["plain"][0]
    assert found["weights"] < 2e-6
    assert found["graphs"] > 0


def test_at_stage_3_a_unit_is_one_graph_for_all_that_are_alike(runs):
    """The embedding, the block, of which there are three, and the head."""
    assert runs["3"]["graphs"] == 3
