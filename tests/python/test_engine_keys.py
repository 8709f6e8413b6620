"""Keys of a ds_config, and arguments, that change what an engine does, as two ranks."""

from pathlib import Path

import pytest
from ranks import run_for_json
from test_engine import assert_same


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("key_runs.py"))


def test_without_managed_accumulation_each_step_counts_what_came_before_it(runs):
    found = runs["every_step_is_a_boundary"]
    assert_same(found["expected"], found["results"])
    assert found["boundaries"] == [False] * 16
    assert found["counts"] == [[3, 5 * 2 * 2]] * 4  # 5 micro batches of 2 samples on 2 ranks
    assert "every step() is the boundary" in found["refused"]["boundary"] and "coalesce_grad_reduction()" in found["refused"]["block"]


def test_master_weights_are_rounded_where_fp32_ones_are_not_to_be_loaded(runs):
    assert runs["master_weights_of_a_checkpoint"] == {str(stage): {"differ": True, "are rounded": True} for stage in range(4)}


def test_moments_have_the_dtype_of_the_master_weights(runs):
    assert runs["dtypes_of_moments"]["masters in bf16: False"] == [0, True]
    spared, falls = runs["dtypes_of_moments"]["masters in bf16: True"]
    assert falls and 2 * (4 - 2) <= spared < 1.1 * 2 * (4 - 2)  # two moments; shards are padded


@pytest.mark.parametrize("stage", "0123")
def test_a_program_loads_weights_in_its_own_way(runs, stage):
    assert runs["weights_loaded_by_the_program"][stage] == {"weights": True, "moments": True}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
def test_an_optimizers_own_state_carries_weights_and_moments(runs, name, stage):
    assert runs["an_optimizers_own_state"][f"{name}, stage {stage}"]


def test_an_optimizers_state_of_other_ranks_is_refused(runs):
    kind, text = runs["an_optimizers_own_state"]["refused"]
    assert kind == "UsageError" and "ranks 7, and this engine's is 2" in text and "load_checkpoint" in text
