"""What DeepSpeed's documentation shows of the engine, as two ranks, with plain PyTorch's numbers; documented_runs.py is the
program. And what needs no ranks of it."""

from pathlib import Path

import pytest
from ranks import run_for_json
from torch import nn


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("documented_runs.py"), timeout=300)


def flat(values):
    return [number for value in values for number in (value if isinstance(value, list) else [value])]


# As in test_engine.py: sums in another order than PyTorch's on one process.
@pytest.mark.parametrize("name", ["one_loss_of_two_engines", "several_backwards_for_one_step", "a_boundary_set_after_the_last_backward",
                                  "backward_by_hand_of_an_accumulation", "a_wrapper_that_answers_for_the_module_inside",
                                  "a_second_engine_of_one_model"])
def test_same_losses_and_norms_as_pytorch(runs, name):
    expected_losses, expected_norms = runs[name]["expected"]
    for losses, norms in runs[name]["results"]:
        assert losses == pytest.approx(expected_losses, rel=2e-6)
        assert flat(norms) == pytest.approx(flat(expected_norms), rel=1e-5)


def test_coalesced_backwards_are_for_sharded_stages_and_followed_by_their_step(runs):
    first, *others = runs["several_backwards_for_one_step"]["refused"]
    assert "stages 1 to 3" in first
    assert len(others) == 3 * 3 and all("inside" in each for each in others)


def test_what_a_program_keeps_from_inside_gathered_parameters_stays(runs):
    run = runs["weights_kept_from_inside"]
    assert run == {"kept": 20, "others at once": [], "others after training": [], "untrained": []}


def test_what_is_sharded_is_empty_in_a_state_dict_that_can_be_saved(runs):
    run = runs["state_dicts_of_sharded_weights"]
    assert run["elements"] == run["of parameters"] and 0 in run["elements"].values()
    assert set(run["addresses"]) == {0}
    assert run["whole"] == run["expected"]


def test_gathered_parameters_may_be_named_in_any_order(runs):
    run = runs["parameters_named_in_another_order_on_each_rank"]
    assert len(run["found"]) == 4
    for found in run["found"]:
        assert found == run["expected"]


def test_a_schedule_that_must_be_told_of_samples_is_told_the_batch_unless_the_program_says(runs):
    run = runs["a_schedule_that_counts_samples"]
    assert run["told"] == [run["batch"], run["batch"], 5]


@pytest.mark.parametrize("stage", range(4))
def test_backward_by_hand_in_fp16_needs_the_scale(runs, stage):
    found = runs["backward_by_hand_in_fp16"][stage]
    assert found["same"] and found["needs"] and found["sharded"] == (stage > 0)
    assert "Loss scaling is required" in found["refused"][0] and "scalar tensor" in found["refused"][1]


@pytest.mark.parametrize("stage", range(4))
def test_the_weights_in_one_file(runs, stage):
    found = runs["weights_in_one_file"][stage]
    assert found["refused"] == (stage == 3) and found["wrote"] == (stage != 3)
    assert found["saved"] == [True, True, True]
    assert found["names"] and found["equal"] and found["safe"] and found["dtype"] == "torch.bfloat16"
    assert found["tied once"] == ["head.weight"]
    assert found["frozen"] == ["blocks.0.widen.weight"]


def test_the_second_engine_of_a_model_answers_for_its_parameters(runs):
    assert runs["a_second_engine_of_one_model"]["knows"] == [True] * 4


def test_ranks_that_name_a_checkpoint_otherwise_save_rank_0s_or_nothing(runs):
    found = runs["tags_that_differ"]
    assert found["Ignore"] == found["Warn"] == ["of-0"]
    assert "different tags, 'of-0' and 'of-1'" in found["Fail"]


def test_a_leaf_module_may_run_other_modules_on_other_ranks(runs):
    """Of DeepSpeed's issue #5066."""
    run = runs["leaf_modules"]
    for losses in run["results"]:
        assert losses == pytest.approx(run["expected"], rel=2e-6)


def test_offload_states_changes_nothing_on_cpu_ranks(runs):
    assert runs["states_to_the_host"] == {"same": True, "refused": 4, "devices": ["cpu"]}


class Base(nn.Linear):
    pass


class Derived(Base):
    pass


def test_leaf_modules_are_found_by_class_name_and_suffix():
    from deepspeed import utils
    from deepspeed.utils import z3_leaf_module  # noqa: F401  not the module of that name

    model = nn.ModuleDict({"one": nn.ModuleDict({"gate": Derived(1, 1)}), "two": nn.Linear(1, 1)})
    gate = model["one"]["gate"]
    assert not z3_leaf_module(gate)
    assert utils.set_z3_leaf_modules(model, [Base]) == [gate] and z3_leaf_module(gate)
    assert utils.get_z3_leaf_modules(model) == [gate]
    assert utils.unset_z3_leaf_modules(model, ["Derived"]) == [gate] and not z3_leaf_module(gate)
    assert utils.set_z3_leaf_modules_by_name(model, ["one.gate", "two"]) == ([gate, model["two"]], [])
    assert utils.set_z3_leaf_modules_by_name(model, ["two"], False) == ([model["two"]], [])
    assert utils.get_z3_leaf_modules(model) == [gate]
    found = utils.set_z3_leaf_modules_by_suffix(model, ["o", "three"], raise_if_not_found=False)
    assert found == ([model["two"]], ["three"])
    with pytest.raises(ValueError, match="three"):
        utils.set_z3_leaf_modules_by_suffix(model, ["o", "three"])
    with pytest.raises(ValueError, match="Base"):
        utils.set_z3_leaf_modules(model["two"], [Base])


def test_a_wrong_configuration_is_deepspeeds_error():
    import deepspeed

    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}, "checkpoint": {"tag_validation": "maybe"}}
    with pytest.raises(deepspeed.DeepSpeedConfigError, match="tag_validation") as raised:
        deepspeed.initialize(model=nn.Linear(1, 1), config=config)
    assert "Warn" in raised.value.fix


def test_a_single_leaf_class_needs_no_list():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    block = DeepSpeedZeroConfig(leaf_module={"classes": "a.B", "names": "c", "name_suffixes": "d"}).leaf_module
    assert (block.classes, block.names, block.name_suffixes) == (["a.B"], ["c"], ["d"])


def test_mixtures_of_experts_of_transformers_are_leaves_by_default():
    from tessera.leaf_modules import is_leaf, mark_leaves_of_config
    from transformers import MixtralConfig, MixtralForCausalLM

    model = MixtralForCausalLM(MixtralConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                             num_attention_heads=1, num_key_value_heads=1))
    leaves = lambda: [name for name, module in model.named_modules() if is_leaf(module)]  # noqa: E731
    mark_leaves_of_config(model, {"zero_optimization.leaf_module.classes": []})
    assert leaves() == []
    mark_leaves_of_config(model, {})
    assert leaves() == ["model.layers.0.mlp"]
