"""The engine from Python, as two ranks: the same numbers as plain PyTorch's, whatever way a program drives it."""

from pathlib import Path

import pytest
from ranks import run_for_json, run_ranks

PROGRAM = Path(__file__).resolve().parent / "engine_runs.py"


@pytest.fixture(scope="module")
def runs():
    return run_for_json(PROGRAM, timeout=600)


# Sums in another order than PyTorch's on one process; after four steps of Adam at a rate of 1e-2 the losses differ by so
# much at most. A wrong gradient changes the second loss by more than 1e-3.
def assert_same(expected, results, tolerance=2e-6):
    for losses, norms in results:
        assert losses == pytest.approx(expected[0], rel=tolerance)
        assert norms == pytest.approx(expected[1], rel=5 * tolerance)


@pytest.mark.parametrize("name", [
    "configuration_as_dict_path_and_arguments", "accumulation_at_every_stage", "recomputation_at_stage_3",
    "weights_that_arrive_with_the_next_forward",
    "optimizer_and_scheduler_as_functions", "an_empty_group", "live_groups", "boundaries_set_by_the_client", "no_sync",
    "backward_of_the_loss_itself", "parameters_read_by_other_modules", "frozen_parameters", "made_under_zero_init",
    "two_engines"])
def test_same_losses_and_norms_as_pytorch(runs, name):
    assert_same(runs[name]["expected"], runs[name]["results"])


@pytest.mark.parametrize("name", ["AdamW, two groups", "Adam", "SGD", "Adagrad", "RMSprop", "NAdam", "AdamW, amsgrad",
                                  "Adam, amsgrad", "SGD, maximize", "Adagrad, maximize", "Adam, maximize"])
def test_an_optimizer_of_the_client_works_at_every_stage(runs, name):
    run = runs["optimizers_of_the_client"][name]
    assert len(run["results"]) == 4
    assert_same(run["expected"], run["results"], tolerance=1e-5)


@pytest.mark.parametrize("name", ["OneBitAdam", "OneBitLamb", "ZeroOneAdam"])
def test_a_class_that_sends_a_bit_an_element_computes_what_its_block_does(runs, name):
    by_config, by_class, never_compressed = runs["optimizers_that_send_a_bit_an_element"][name]
    assert by_class == by_config
    assert by_class[0][:3] == never_compressed[0][:3] and by_class[0][4:] != never_compressed[0][4:]


def test_a_class_that_sends_a_bit_an_element_needs_an_engine(runs):
    kind, text = runs["optimizers_that_send_a_bit_an_element"]["alone"]
    assert kind == "UsageError" and "OnebitAdam averages over ranks, and has no engine" in text


def test_weights_arrive_lazily_where_ranks_send_them_round(runs):
    assert runs["weights_that_arrive_with_the_next_forward"]["hooks"][1:3] == [True, True]


def test_groups_and_schedules_are_live(runs):
    assert runs["live_groups"]["unchanged"]
    assert runs["an_empty_group"]["groups"] == [[2, 2]] * 4
    assert runs["optimizer_and_scheduler_as_functions"]["lr"] == [1e-2 * 0.5 ** 4] * 2


def test_unused_parameters_are_an_error_where_deepspeed_has_one(runs):
    run = runs["unused_parameters"]
    for stage in range(4):
        assert run[f"True, stage {stage}"] == pytest.approx(run["expected"], rel=2e-6)
        if stage in (0, 3):
            assert run[f"False, stage {stage}"] == pytest.approx(run["expected"], rel=2e-6)
        else:
            said = run[f"False, stage {stage}"]
            assert "'spare.weight', 'spare.bias'" in said and "ignore_unused_parameters" in said


def test_zero_init_leaves_placeholders_that_know_their_shapes(runs):
    made = runs["made_under_zero_init"]
    assert made["sizes"] == [0]
    assert made["shapes"] == made["true_shapes"]


def test_gathered_parameters_keep_what_the_modifier_wrote_and_nothing_else(runs):
    assert runs["gathered_parameters"] == {
        "outside": 0, "status": "NOT_AVAILABLE", "inside": [48, 16], "equal": True, "kept without modifier": False,
        "kept with modifier": True, "afterwards": 0, "master": 5.0}


def test_full_gradients_weights_and_moments_can_be_read_and_written(runs):
    for stage in "123":
        assert runs["tensor_fragments"][stage] < 1e-6


@pytest.mark.parametrize("stage", range(4))
def test_a_checkpoint_keeps_a_client_optimizer_its_schedule_and_any_value(runs, stage):
    run = runs["checkpoints_of_a_client_optimizer"]["stages"][stage]
    assert run["results"] == [run["expected"]]
    assert run["lr"] == pytest.approx(1e-2 * 0.7 ** 4)
    assert (run["tag"], run["epoch"], run["any"], run["set"]) == ("global_step2", 3, [0, 1, 2], [1, 2])


def test_a_folder_without_a_checkpoint_loads_nothing(runs):
    assert runs["checkpoints_of_a_client_optimizer"]["empty"] == [None, None]


def test_an_exception_in_forward_backward_or_a_hook_leaves_the_engine_usable(runs):
    run = runs["errors_leave_the_engine_usable"]
    assert run["seen"] == ["in forward", "in backward", "in backward"] * 4
    assert_same(run["expected"], run["results"])


def test_an_engine_without_an_optimizer_runs_forward(runs):
    run = runs["without_an_optimizer"]
    assert run["result"] == pytest.approx(run["expected"], rel=1e-6)
    assert run["optimizer"] is None
    assert run["sizes"] == [0]


def test_full_weights_of_a_checkpoint(runs):
    run = runs["full_weights"]
    assert run["same_names"] and run["equal"] and run["script"]
    assert run["files"]["False-5GB"] == ["pytorch_model.bin"]
    assert run["files"]["True-5GB"] == ["model.safetensors"]
    assert "pytorch_model.bin.index.json" in run["files"]["False-4KB"] and len(run["files"]["False-4KB"]) > 3
    assert "model.safetensors.index.json" in run["files"]["True-4KB"]


def test_sparse_gradients_of_an_embedding(runs):
    run = runs["sparse_gradients"]
    assert run["norms"] == pytest.approx([run["expected"]] * 4, rel=1e-6)


def test_a_model_has_the_same_units_at_every_stage(runs):
    """So that a unit's gradients are reduced while backward goes on, and stage 2 keeps no more than one unit's whole."""
    assert {"embedding", "blocks.0", "blocks.1", "blocks.2"} <= set(runs["units_of_each_stage"][0])
    assert all(units == runs["units_of_each_stage"][0] for units in runs["units_of_each_stage"])


def test_engines_that_are_made_and_deleted_do_not_grow_the_process(runs):
    state = 16 << 20  # bytes of training state of one engine; eight rounds would leave eight times that
    for case, grown in runs["twenty_rounds"].items():
        assert grown < state / 4, case


def test_generation_under_stage_3(runs):
    assert runs["generation"]["ours"] == runs["generation"]["plain"]


def test_python_threads_go_on_during_backward_and_step(runs):
    """The other thread sleeps a millisecond a turn; with the GIL held it would get none in."""
    run = runs["threads_go_on"]
    assert run["counted"] > run["milliseconds"] / 20


def test_a_first_step_does_not_import_the_compiler(tmp_path):
    """torch._dynamo takes longer to import than torch; torch.optim.Optimizer would import it."""
    program = tmp_path / "first_step.py"
    program.write_text("""
import sys, deepspeed, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "scheduler": {"type": "WarmupLR", "params": {}}}
engine, optimizer, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
engine.backward(engine(torch.ones(1, 4)).sum())
engine.step()
print("imported" if "torch._dynamo" in sys.modules else "left out", len(optimizer.param_groups[0]["params"]))
""")
    assert run_ranks(program).strip().splitlines()[-1] == "left out 4"


def test_a_rank_that_fails_does_not_hang_the_others(tmp_path):
    program = tmp_path / "fails.py"
    program.write_text("""
import sys
sys.path.insert(0, sys.argv[1])
import deepspeed
from small_model import *
deepspeed.init_distributed()
engine, *_ = start(config=config(3))
if dist.get_rank() == 1:
    sys.exit(3)
trained(engine)
""")
    said = run_ranks(program, PROGRAM.parent, fails=True, timeout=60)
    assert "rank 1 ended with 3" in said
    assert "PeerError" in said and "rank 1" in said.split("== rank 0")[1].split("== rank 1")[0]
