"""At one number of ranks ZeRO's stages give the same bits: they differ in where a number lies, not in how it is made."""

import pytest
from tessera_runs import largest_difference, losses_and_norms, metrics, train, write_run_file

STAGES = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def minilm_runs(minilm, data, tmp_path_factory):
    """Folder with stage0 .. stage3: MiniLM on WikiText-2, two ranks, 50 steps, dropout as in its config.json."""
    folder = tmp_path_factory.mktemp("minilm")
    run_file = write_run_file(folder, {
        "model": {"path": str(minilm), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(data / "wikitext-2" / "train-00000-of-00001.parquet"), "max_length": 32},
        "training": {"max_steps": 50, "seed": 42},
        "deepspeed": {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}},
    })
    for stage in STAGES:
        train(run_file, 2, {"deepspeed.zero_optimization.stage": stage, "output": folder / f"stage{stage}"}, timeout=300)
    return folder


@pytest.mark.parametrize("stage", STAGES[1:])
def test_minilm_has_the_bits_of_stage_0_for_50_steps(minilm_runs, stage):
    expected = losses_and_norms(minilm_runs / "stage0")
    assert len(expected) == 50
    assert losses_and_norms(minilm_runs / f"stage{stage}") == expected


def test_minilm_learns(minilm_runs):
    losses = [line["loss"] for line in metrics(minilm_runs / "stage0")]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def of_stages(tmp_path, run, settings, steps=10):
    run["training"]["max_steps"] = steps
    run_file = write_run_file(tmp_path, run)
    for stage in STAGES:
        train(run_file, 2, {**settings, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    return [tmp_path / f"stage{stage}" for stage in STAGES]


def test_accumulation_has_the_same_bits_within_the_two_pairs_of_stages(tiny_run, tmp_path):
    """Stages 0 and 1 reduce once a step, 2 and 3 once a micro batch: another order of additions, so 1e-6 between."""
    outputs = of_stages(tmp_path, tiny_run, {"deepspeed.gradient_accumulation_steps": 2})
    bits = [losses_and_norms(output) for output in outputs]
    assert bits[0] == bits[1]
    assert bits[2] == bits[3]
    assert largest_difference(metrics(outputs[2])[:1], metrics(outputs[0])[:1]) < 1e-6


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
