"""What a program does to parameters and gradients between passes counts, as it does for a model without an engine."""

from pathlib import Path

import pytest
from ranks import run_for_json


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("touched_runs.py"))


@pytest.mark.parametrize("stage", "0123")
def test_clipping_by_hand_is_said_to_find_no_gradients(runs, stage):
    found = runs["gradients_clipped_by_hand"]
    assert found[stage][:1] + found[stage][2:] == [""] * 5
    assert "clip_grad_norm_ clips nothing here: the engine has the gradients of these parameters; set gradient_clipping" in found[stage][1]
    norm, clipped = found[f"{stage} others"]
    assert norm > 0.5 and clipped < 0.5


@pytest.mark.parametrize("stage", "0123")
def test_data_given_to_a_parameter_trains_on(runs, stage):
    found = runs["data_given_to_a_parameter"]
    assert found[stage] == pytest.approx(found["plain"], rel=1e-5)
    assert len(set(found["plain"])) > 2


def test_data_given_to_a_parameter_is_saved(runs):
    assert runs["data_given_before_a_save"] == {stage: [7.0] for stage in "012"}


def test_data_of_another_dtype_is_refused_by_name(runs):
    kind, said = runs["data_of_another_dtype"]
    assert kind == "UsageError"
    assert "the parameter 'weight' was given data of the dtype Double and the shape (2, 4) after initialize, where it had Float and (2, 4)" in said
    assert "fix:   convert a model before initialize" in said


@pytest.mark.parametrize("stage", "0123")
@pytest.mark.parametrize("how", ["engine", "optimizer"])
def test_zero_grad_drops_what_waits_for_a_step(runs, stage, how):
    found = runs["gradients_dropped"]
    assert found[f"{stage} {how}"] == found[f"{stage} nothing bad"]


def test_zero_grad_in_an_accumulation_does_what_deepspeeds_does(runs):
    """Measured with DeepSpeed 0.19.8: the mean gradient of both micro batches is 5.5, of the last one alone 0.5."""
    found = runs["gradients_under_way"]
    stays = {"2 engine", "2 optimizer", "3 engine"}
    assert found["moved"] == pytest.approx({name: 5.5 if name in stays else 0.5 for name in found["moved"]}, rel=1e-4)
    assert found["said"] == {name: int(name in stays) for name in found["said"]}


@pytest.mark.parametrize("stage", "0123")
def test_what_is_written_to_16_bit_weights_stays(runs, stage):
    """At stages 0 to 2 the rest keeps the digits of its fp32 values; at stage 3 the unit's are those of the 16 bits."""
    found = runs["weights_written_in_16_bits"][stage]
    assert found["written"] == [0.25] * 4
    assert found["kept"] == (stage != "3")


def test_a_model_in_float64_is_told_that_it_will_not_be(runs):
    found = runs["double_precision"]
    assert found["dtype"] == "torch.float32"
    assert found["said"].count("2 parameters, such as 'weight', are in float64") == 1
