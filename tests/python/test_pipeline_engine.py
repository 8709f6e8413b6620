"""PipelineModules whose stages lie on several ranks: pipeline_runs.py is the program, on four ranks."""

from pathlib import Path

import pytest
from ranks import run_for_json


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("pipeline_runs.py"), count=4, timeout=300)


@pytest.fixture(scope="module")
def runs_of_tensor_ranks():
    return run_for_json(Path(__file__).with_name("pipeline_tensor_runs.py"), count=4, timeout=200)


@pytest.mark.parametrize("case", ["2, 1, 0", "2, 1, 1", "1, 2, 2", "1, 2, 3", "2, 1, 3"])
def test_layers_that_tensor_ranks_share_train_as_the_whole_model(runs_of_tensor_ranks, case):
    """Layers of the program's own; the last four of 20 steps go on from their checkpoint in stages of whole layers."""
    result = runs_of_tensor_ranks["layers_cut_over_tensor_ranks"]
    found = result["runs"][case]
    stages, data, stage = map(int, case.split(","))
    assert found["sizes"][:2] == [data, 2 * stages] and (stage < 3) == (found["sizes"][2] == [23, 12])
    for got, expected in zip(found["found"], result["expected"], strict=True):
        assert len(got) == 20
        assert got == pytest.approx(expected, rel=1e-5)
    assert result["expected"][0][-1] < 0.98 * result["expected"][0][0]
    assert max(found["weights"]) < 1e-5  # put together after 16 steps, and of files for each layer and tensor rank


@pytest.mark.parametrize("case, parts", [
    ("2 stages, stage 0", None), ("4 stages, stage 1", None), ("2 stages, stage 2", None), ("2 stages, stage 3", None),
    ("4 stages, uniform", [0, 2, 4, 6, 8]), ("2 stages, by type", [0, 4, 8]), ("4 stages, recomputed", None), ("1 stage", [0, 8])])
def test_a_pipeline_trains_as_the_whole_model_in_plain_pytorch(runs, case, parts):
    """The weights are those of rank 0, which has been given every stage's; each micro batch has gone through each layer once."""
    result = runs["pipelines"][case]
    for found, expected in zip(result["found"], result["expected"], strict=True):
        assert len(found) == 20
        assert found == pytest.approx(expected, rel=1e-5)
    assert result["expected"][0][-1] < 0.98 * result["expected"][0][0]
    assert result["weights"] < 1e-3
    assert parts is None or result["parts"] == parts
    data_ranks = 4 // (len(result["parts"]) - 1)
    assert result["passes"] == {f"{layer}.passes": 20 * 8 // data_ranks for layer in range(1, 6)} or "recomputed" in case


@pytest.mark.parametrize("precision, tolerance", [("bf16", 2e-3), ("fp16", 5e-4)])
def test_it_does_so_in_16_bits(runs, precision, tolerance):
    result = runs["in_half_precision"][precision]
    for found in result["found"]:
        assert found == pytest.approx(result["expected"], rel=tolerance)
        assert found != result["expected"]


def test_evaluations_are_those_of_the_whole_model_and_change_nothing(runs):
    ranks = runs["evaluations"]
    for rank, run in enumerate(ranks):
        assert run["mean"] == pytest.approx(run["expected"], rel=1e-5)
        assert run["unchanged"] and run["outputs"] and run["each"], (rank, run)
        assert run["losses"][0] == pytest.approx(run["losses"][1], rel=1e-5)


def test_a_checkpoint_goes_on_over_any_number_of_stages(runs):
    """Buffers of every stage among it: of a rank's own micro batches, 8 or 4 or 2 a step, as each life has 1, 2 or 4 data-parallel ranks."""
    run = runs["checkpoints"]
    assert run["losses"][0] == pytest.approx(run["losses"][1], rel=1e-5)
    for rank, lives in enumerate(run["seen"]):
        assert [(life, steps) for life, _, steps in lives] == [(0, 4), (1, 8), (2, 12)]
        for (_, passes, _), count in zip(lives, (4 * 4, 4 * 4 + 4 * 8, 4 * 4 + 4 * 8 + 4 * 2)):
            assert set(passes) <= {count}, (rank, lives)
    assert {name.split(".")[0] for name in run["names"]} == {"1", "2", "3", "4", "5", "tied_modules"}


def test_training_data_batch_functions_and_more_losses(runs):
    run = runs["data_and_reports"]
    assert run["loader"] == "RepeatingLoader"
    for found, expected in (run["losses"], run["sizes"], run["again"]):
        assert found == pytest.approx(expected, rel=1e-5)
    assert [line.split(" iter")[0] for line in run["printed"]] == [
        f"steps: {step} loss: {run['losses'][1][step - 1]:.4f} size: {run['sizes'][1][step - 1]:.4f}" for step in (2, 4, 6)]


@pytest.mark.parametrize("form", ["2 stages", "4 stages", "no pipeline"])
def test_a_vision_model_joined_to_a_list_of_layers(runs, form):
    """A built model with its pooling, a function between them, training_data and no iterator, beside plain PyTorch with the whole batch."""
    found, expected = runs["a_vision_model"][form]
    assert len(found) == 6 and found == pytest.approx(expected, rel=1e-5)
    assert expected[-1] != pytest.approx(expected[0], rel=0.01)


def test_layers_have_deepspeeds_seeds_and_the_same_when_they_are_computed_again(runs):
    assert runs["seeds_of_layers"] == {"0": [True, True], "1": [True, True], "2": [True, True]}


def test_its_names_and_what_it_refuses(runs):
    run = runs["names_and_misuse"]
    assert run["class"] and run["micro"] == [4, 2] and run["place"] == [2, 0, True, True, 2]
    for name in ("forward", "backward", "step"):
        assert f"{name}() is not for pipelines of several stages" in run[name]
    assert "use eval_batch() instead" in run["no grad"][1].lower()
    assert run["empty"][0] == "UsageError" and "stage 1 of 2 has no parameters to train; its layers: ReLU" in run["empty"][1]
    assert run["no data"][0] == "UsageError" and "have none" in run["no data"][1]
    assert run["reduction"][0] == "NotImplementedError" and "max" in run["reduction"][1]
    assert run["instructions"][0] == "UsageError" and "BackwardPass" in run["instructions"][1]
    assert run["destroyed"][0] == "UsageError" and "destroy() was called" in run["destroyed"][1]
