"""What asks for parallelism that Tessera does not have is refused by name; parallelism_runs.py is the program, on two
ranks."""

from pathlib import Path

import pytest
from parallelism_getters import GETTERS
from ranks import run_for_json

NOTHING = ["nothing", ""]


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("parallelism_runs.py"), timeout=300)


def assert_refused(said, *parts):
    """Before the engine took a parameter."""
    kind, text, *taken = said
    assert kind == "UsageError" and taken in ([], [False])
    for part in parts:
        assert part in text


@pytest.mark.parametrize("getter", GETTERS)
def test_an_mpu_is_refused_by_its_getter_when_a_size_is_above_1(runs, getter):
    of_one, of_two = runs["sizes_of_an_mpu"][getter]
    assert of_one[:2] == NOTHING
    why = "its tensor-parallel group has 1 rank" if GETTERS[getter] in ("tensor", "model") else f"{GETTERS[getter]} parallelism is not in Tessera yet"
    assert_refused(of_two, f"mpu.{getter}() is 2", why, "where: the argument mpu", "use 1")


def test_an_mpu_whose_ranks_share_sequences_needs_their_group(runs):
    of_one, of_two = runs["sizes_of_an_mpu"]["get_sequence_parallel_world_size"]
    assert of_one[:2] == NOTHING
    assert_refused(of_two, "mpu.get_sequence_parallel_world_size() is 2", "there is no get_sequence_parallel_group()")


def test_an_mpu_of_sizes_1_trains_as_without_it(runs):
    run = runs["an_mpu_of_size_one"]
    assert run["groups know it"]
    losses, norms = run["results"][0]
    assert losses == pytest.approx(run["expected"][0], rel=2e-6)
    assert norms == pytest.approx(run["expected"][1], rel=1e-5)


def test_layers_that_megatron_marks_and_nobody_shares_are_whole(runs):
    run = runs["a_unit_of_one_tensor_rank"]
    for losses, norms in run["results"]:
        assert losses == pytest.approx(run["expected"][0], rel=2e-6)
        assert norms == pytest.approx(run["expected"][1], rel=1e-5)


def test_a_mesh_of_data_and_shared_sequences_is_made_and_what_is_none_is_refused(runs):
    run = runs["meshes"]
    assert run["(2, 1)"][:2] == NOTHING and run["group"] == [0, 1]
    assert run["(1, 2)"][:2] == NOTHING
    assert_refused(run["(1, 1)"], "has 1 place, and the number of ranks is 2")
    assert_refused(run["2"], "not two numbers")
    assert_refused(run["('a', 'b')"], "not two numbers")


def test_a_pipeline_of_one_stage_trains_and_what_none_can_have_is_refused(runs):
    run = runs["pipelines"]
    assert run["one"] == 1
    assert_refused(run["two"], "the PipelineModule has 2 stages", "use deepspeed.initialize")
    assert_refused(run["mpu"], "an mpu of its own")
    assert run["train_batch"][0] == "AttributeError" and "engine.backward(loss)" in run["train_batch"][1]


@pytest.mark.parametrize("name", ["ep_size_2", "experts of mine", "null", "groups made, ep_size_2"])
def test_an_expert_that_not_every_rank_holds_is_refused(runs, name):
    assert_refused(runs["experts"]["said"][name], "'blocks.1.widen.weight' is an expert", "use ep_size=1")


def test_an_expert_that_every_rank_holds_is_reduced_over_all_ranks_as_in_deepspeed(runs):
    """ep_size 1 makes the expert-data-parallel group the data-parallel one: at four stages, and without groups made."""
    run = runs["experts"]
    assert len(run["results"]) == 5
    for losses, norms in run["results"]:
        assert losses == pytest.approx(run["expected"][0], rel=2e-6)
        assert norms == pytest.approx(run["expected"][1], rel=1e-5)


def test_layers_that_make_groups_are_told_to(runs):
    assert runs["layers_that_make_groups_of_their_own"] == [False]


@pytest.mark.parametrize("argument", ["zero_param_parallel_group", "zero_quantized_weights",
                                      "zero_quantized_nontrainable_weights", "remote_device", "param_swapper"])
def test_zero_init_refuses_arguments_that_it_does_not_honour(runs, argument):
    assert_refused(runs["zero_init"][argument], f"'{argument}' is not supported yet", "leave it out")


def test_zero_init_partitions_over_the_group_that_it_is_given(runs):
    run = runs["zero_init"]
    assert_refused(run["mpu"], "is 2: and its tensor-parallel group has 1 rank", "the argument mpu of zero.Init")
    assert_refused(run["both groups"], "both given")
    assert run["fine"] == run["not enabled"] == NOTHING
    assert run["parts"] == [16, 8]  # of 16 elements: all on a rank alone, half on each of two


def test_arguments_that_contradict_the_launcher_are_refused(runs):
    other_rank, no_rank, two_configurations = runs["command_lines"]
    assert_refused(other_rank, "args.local_rank is 7", "LOCAL_RANK is 0")
    assert no_rank == NOTHING
    assert two_configurations[0] == "AssertionError" and "once" in two_configurations[1]
