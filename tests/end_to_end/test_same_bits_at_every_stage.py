"""At one number of ranks ZeRO's stages give the same bits: they differ in where a number lies, not in how it is made."""

import math

import pytest
from fixtures import STAGES
from tessera_runs import largest_difference, losses_and_norms, metrics, train, write_run_file


@pytest.mark.parametrize("stage", STAGES[1:])
def test_minilm_has_the_bits_of_stage_0_for_50_steps(minilm_runs, stage):
    expected = losses_and_norms(minilm_runs / "stage0")
    assert len(expected) == 50
    assert losses_and_norms(minilm_runs / f"stage{stage}") == expected


def test_minilm_learns(minilm_runs):
    losses = [line["loss"] for line in metrics(minilm_runs / "stage0")]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


# Bytes a parameter in fp32 (weight 4, gradient 4, two moments 8) at 2 ranks, of which stage 1 halves the moments, stage 2
# the gradient too and stage 3 all: Rajbhandari et al. 2020, figure 1, in fp32.
@pytest.mark.parametrize("stage, bytes_a_parameter", [(0, 16), (1, 12), (2, 10), (3, 8)])
def test_model_state_takes_the_bytes_of_the_paper(minilm_runs, stage, bytes_a_parameter):
    lines = metrics(minilm_runs / f"stage{stage}")
    from safetensors import safe_open

    with safe_open(minilm_runs / f"stage{stage}" / "export" / "model.safetensors", "pt") as file:
        params = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())
    assert lines[-1]["model_state_bytes"] == pytest.approx(bytes_a_parameter * params, rel=0.01)


def of_stages(tmp_path, run, settings, steps=10):
    run["training"]["max_steps"] = steps
    run_file = write_run_file(tmp_path, run)
    for stage in STAGES:
        train(run_file, 2, {**settings, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    return [tmp_path / f"stage{stage}" for stage in STAGES]


@pytest.mark.sample()
def test_accumulation_has_the_same_bits_within_the_two_pairs_of_stages(accumulated_minilm_runs):
    """Stages 0 and 1 reduce once a step, 2 and 3 once a micro batch: another order of additions, so 1e-6 between."""
    outputs = [accumulated_minilm_runs / f"stage{stage}" for stage in STAGES]
    bits = [losses_and_norms(output) for output in outputs]
    assert len(bits[0]) == 50
    assert bits[0] == bits[1]
    assert bits[2] == bits[3]
    assert bits[0] != bits[2]  # or the order of additions is not what it is said to be
    assert largest_difference(metrics(outputs[2]), metrics(outputs[0])) < 1e-6


def test_an_epoch_that_does_not_divide_has_the_same_bits_at_every_stage(tiny_run, tmp_path, texts):
    """60 texts, 16 a step at two ranks: the last step of an epoch has 12, in micro batches of 4 and 2 a rank."""
    tiny_run["data"]["train"] = str(texts / "held_back.parquet")
    outputs = of_stages(tmp_path, tiny_run, {"deepspeed.train_batch_size": 16,
                                             "deepspeed.train_micro_batch_size_per_gpu": 4})
    assert [line["samples"] for line in metrics(outputs[0])][:5] == [16, 32, 48, 60, 76]
    bits = [losses_and_norms(output) for output in outputs]
    assert bits[0] == bits[1]
    assert bits[2] == bits[3]
    assert largest_difference(metrics(outputs[2])[:4], metrics(outputs[0])[:4]) < 1e-5


def test_bf16_has_the_same_bits_at_every_stage(tiny_run, tmp_path):
    outputs = of_stages(tmp_path, tiny_run, {"deepspeed.bf16.enabled": "true"})
    bits = [losses_and_norms(output) for output in outputs]
    assert bits[1:] == [bits[0]] * 3


def test_an_option_that_changes_the_numbers_changes_the_bits(tiny_run, tmp_path):
    """So that the tests above cannot pass because the bits never change."""
    run_file = write_run_file(tmp_path, tiny_run)
    train(run_file, 2, {"training.max_steps": 3, "output": tmp_path / "dropout"})
    train(run_file, 2, {"training.max_steps": 3, "output": tmp_path / "none", "model.dropout": 0})
    dropout, none = losses_and_norms(tmp_path / "dropout"), losses_and_norms(tmp_path / "none")
    assert all(a != b for a, b in zip(dropout, none))
