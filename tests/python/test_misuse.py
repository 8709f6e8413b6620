"""An engine that is used wrongly says what happened and what to do; misuse_runs.py is the program, on two ranks."""

from pathlib import Path

import pytest
from ranks import run_for_json

NOTHING = ["nothing", ""]


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("misuse_runs.py"), timeout=300)


def assert_says(said, *parts):
    kind, text = said
    assert kind == "UsageError"
    for part in parts:
        assert part in text


@pytest.mark.parametrize("run, name", [
    ("a_module_replaced", "blocks.1.widen.weight"), ("a_parameter_replaced", "scale"),
    ("a_resized_embedding", "embedding.weight"), ("a_parameter_added", "blocks.0.extra")])
@pytest.mark.parametrize("stage", range(4))
def test_a_parameter_that_came_after_initialize_is_named_at_the_next_forward(runs, run, name, stage):
    assert_says(runs[run][stage], f"'{name}' was put into the model after initialize", "does not train it", "where: Model",
                "call initialize again")


@pytest.mark.parametrize("stage", range(4))
def test_a_parameter_unfrozen_after_initialize_is_named(runs, stage):
    assert_says(runs["a_parameter_unfrozen"][stage], "'scale' was frozen at initialize", "set requires_grad before")


def test_frozen_and_empty_parameters_may_come_and_an_evaluation_may_see_anything(runs):
    assert runs["what_may_come_and_go"] == [NOTHING] * 6


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("name", ["AdamW", "NAdam"])  # one runs in C++, the other by its own step()
def test_a_step_of_an_optimizer_over_an_engines_parameters_is_an_error(runs, name, stage):
    calls = runs["an_optimizer_of_ones_own"][f"{name}, stage {stage}"]
    for said, optimizer in zip(calls, ["SGD", name] * 2, strict=True):
        assert_says(said, f"{optimizer}.step() would change nothing", "call engine.step()")


def test_an_optimizer_over_other_parameters_is_free(runs):
    run = runs["an_optimizer_of_ones_own"]
    assert run["other parameters"] == run["engine destroyed"] == NOTHING
    assert run["they changed"]


def test_the_engines_own_optimizer_steps_it_and_refuses_closures_and_late_groups(runs):
    run = runs["the_engines_own_optimizer"]
    for step, steps, closure in run["steps"]:
        assert (step, steps) == (NOTHING, 1)
        assert_says(closure, "closure", "engine.backward(loss)")
    for said in run["groups"]:
        assert_says(said, "was 1 at initialize and is 2 now", "make all groups before initialize")
    assert_says(run["engine gone"], "the engine of this optimizer is gone", "keep the engine")


def test_a_forward_past_the_engine_gives_the_same_numbers(runs):
    run = runs["forward_past_the_engine"]
    assert len(run["results"]) == 8
    for losses, norms in run["results"]:
        assert losses == pytest.approx(run["expected"][0], rel=2e-6)
        assert norms == pytest.approx(run["expected"][1], rel=1e-5)


def test_a_backward_by_hand_past_the_engine_in_fp16_names_the_loss_scale(runs):
    for kind, text in runs["fp16_past_the_engine"]:
        assert kind == "RuntimeError" and "scale(loss).backward()" in text


def test_copies_of_a_model_train_without_its_engine(runs):
    run = runs["copies_of_the_model_have_no_engine"]
    assert run["found"] == pytest.approx([run["expected"]] * 2, rel=1e-6)


@pytest.mark.parametrize("stage", "0123")
@pytest.mark.parametrize("use", ["forward", "backward", "step", "save", "load", "weights", "steps"])
def test_the_first_of_two_engines_on_one_model_says_that_it_let_go(runs, stage, use):
    assert_says(runs["the_first_of_two_engines_on_one_model"][stage][use], "this engine has let go of its model",
                "another engine of it", "use the newer engine")


def test_the_second_of_two_engines_trains_and_the_first_may_be_destroyed_again(runs):
    run = runs["the_first_of_two_engines_on_one_model"]
    for stage in "0123":
        assert run[stage]["second"] == run[stage]["destroyed again"] == NOTHING
        assert run[stage]["optimizer"][0] == "UsageError"
    assert_says(run["destroyed"], "destroy() was called", "make another engine")


def test_a_keyword_of_backward_that_changes_gradients_is_refused(runs):
    not_reduced, graph, steps = runs["keywords_of_backward"]
    assert_says(not_reduced, "allreduce_gradients=False", "no_sync()")
    assert graph == ["TypeError", "backward() got an unexpected keyword argument 'create_graph'"]
    assert steps == 1


def test_a_sharded_weight_that_is_read_says_so_and_is_not_nan(runs):
    """Its size is 0, as in DeepSpeed, where the mean of it is NaN and torch.save writes a file of nothing. A state dict of such weights may be
    saved, as DeepSpeed-Chat does before it puts them together; that is said."""
    (*refusals, of_state_dict), may_be_asked, finite = runs["weights_read_at_stage_3"]
    assert of_state_dict[0] == "nothing" and "has empty tensors where parameters are sharded" in of_state_dict[1]
    assert "save_16bit_model" in of_state_dict[1]
    for kind, text in refusals:
        assert kind == "RuntimeError"
        assert "are sharded (ZeRO stage 3)" in text
        assert "zero.GatheredParameters in Python" in text and "save_16bit_model" in text
    assert may_be_asked == [0, [0], "torch.float32", True, [0]]
    assert finite
