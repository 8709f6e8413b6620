"""A program's own process groups become the engine's mesh; mesh_runs.py is the program, on four ranks."""

from pathlib import Path

import pytest
from ranks import run_for_json

ROW_BY_ROW = [[0, 0], [0, 1], [1, 0], [1, 1]]


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("mesh_runs.py"), count=4, timeout=300)


@pytest.mark.parametrize("given, axes, data_parallel", [
    ("DeviceMesh", ["dp_replicate", "dp_shard"], 4), ("dict", ["dp_replicate", "dp_shard"], 4),
    ("mpu", ["dp_shard", "tp"], 2), ("tp outermost", ["tp", "dp_shard"], 2)])
def test_groups_of_every_kind_become_a_mesh(runs, given, axes, data_parallel):
    found = runs["groups_become_a_mesh"][given]
    assert found == [[[axis, 2] for axis in axes], ROW_BY_ROW, [data_parallel] * 4]


def test_groups_that_are_no_mesh_of_all_ranks_are_refused(runs):
    run = runs["groups_become_a_mesh"]
    assert run["incomplete"][0] == "UsageError" and "the places of 4 ranks do not make the mesh" in run["incomplete"][1]
    assert run["nothing of the kind"][0] == "UsageError" and "this Linear" in run["nothing of the kind"][1]
    assert run["sequences"][0] == "UsageError" and "'cp'" in run["sequences"][1]


def test_replicas_of_sharded_state_train_as_plain_pytorch(runs):
    run = runs["replicas_of_sharded_state"]
    for losses, norms in run["results"]:
        assert losses == pytest.approx(run["expected"][0], rel=2e-6)
        assert norms == pytest.approx(run["expected"][1], rel=1e-5)
    of_stage_0, *sharded = run["elements"]  # of a parameter's state on rank 0: with replicas of shards, and over all ranks
    assert of_stage_0[0] == of_stage_0[1] and all(hybrid > plain for hybrid, plain in sharded)


def test_the_programs_own_tensor_parallel_layers_train_as_the_whole_model(runs):
    """At every stage, and by an mpu, also made under zero.Init; the norm counts what both ranks hold once, and what each holds alone too."""
    run = runs["tensor_parallel_layers_of_the_program"]
    assert len(run["results"]) == 6
    for result in run["results"]:
        for (losses, norm), (expected_losses, expected_norm) in zip(result, run["expected"], strict=True):
            assert losses == pytest.approx(expected_losses, rel=1e-5)
            assert norm == pytest.approx(expected_norm, rel=1e-5)


def test_what_tensor_parallel_ranks_saved_loads_where_every_rank_has_the_whole(runs):
    """… and so does what ranks put together, whose tensor-parallel group an mpu brought."""
    differences = runs["tensor_parallel_layers_of_the_program"]["difference of what was loaded"]
    assert len(differences) == 6 and max(differences) < 1e-5


def test_what_does_not_fit_the_mesh_is_refused_by_name(runs):
    assert "cannot be put together yet" in runs["tensor_parallel_layers_of_the_program"]["weights alone"][1]
    run = runs["placements_that_do_not_fit"]
    assert run["axis"][0] == "UsageError" and "the axis 'ep', which the mesh does not have" in run["axis"][1]
    assert run["dimension"][0] == "UsageError" and "no dimension 7" in run["dimension"][1]
