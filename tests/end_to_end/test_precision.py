"""fp16 and bf16 beside fp32 on real text, determinism, and the full configuration of the Hugging Face document (002)."""

import json
from pathlib import Path

import pytest
import safetensors.torch
from fixtures import STAGES
from model_folders import ENGLISH
from tessera_runs import losses_and_norms, metrics, tessera, train, train_arguments, write_run_file

CONFIGS = Path(__file__).resolve().parents[1] / "config" / "configs"


@pytest.fixture(scope="module")
def curves(minilm, tmp_path_factory):
    """Losses of 100 steps of MiniLM on English text in each precision, without dropout: the same masks and samples."""
    folder = tmp_path_factory.mktemp("precision")
    run_file = write_run_file(folder, {
        "model": {"path": str(minilm), "init": "pretrained", "dropout": 0},
        "task": "mlm",
        "data": {"train": str(ENGLISH / "train.txt"), "max_length": 32},
        "training": {"max_steps": 100, "seed": 42, "save_steps": 1000000},
        "deepspeed": {"train_batch_size": 8, "zero_optimization": {"stage": 2},
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}},
    })
    # A first scale at which no step is skipped, so that the same steps are compared.
    precisions = {"fp32": {}, "bf16": {"deepspeed.bf16.enabled": "true"},
                  "fp16": {"deepspeed.fp16.enabled": "true", "deepspeed.fp16.initial_scale_power": 8}}
    for name, settings in precisions.items():
        train(run_file, 2, {**settings, "output": folder / name}, timeout=500)
    return {name: [line["loss"] for line in metrics(folder / name)] for name in precisions}


def smoothed(losses, width=10):
    """Running means: a batch of this test has some 20 target tokens, so single losses are noise."""
    return [sum(losses[i:i + width]) / width for i in range(len(losses) - width + 1)]


@pytest.mark.sample()
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_loss_curve_stays_within_2_percent_of_fp32s(curves, precision):
    assert len(curves["fp32"]) == 100
    assert curves[precision] != curves["fp32"]
    for step, (got, want) in enumerate(zip(smoothed(curves[precision]), smoothed(curves["fp32"])), start=1):
        assert got == pytest.approx(want, rel=0.02), f"steps {step} to {step + 9}"
    assert smoothed(curves["fp32"])[-1] < 0.5 * curves["fp32"][0]


def test_fp16_has_the_same_bits_at_every_stage(tiny_run, tmp_path):
    run_file = write_run_file(tmp_path, tiny_run)
    for stage in STAGES:
        train(run_file, 2, {"deepspeed.fp16.enabled": "true", "deepspeed.zero_optimization.stage": stage,
                            "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert bits[1:] == [bits[0]] * 3


@pytest.mark.sample("bf16")
@pytest.mark.parametrize("settings", [{}, {"deepspeed.bf16.enabled": "true"}, {"deepspeed.optimizer.type": "Muon"}],
                         ids=["fp32", "bf16", "muon"])
def test_the_same_seed_gives_the_same_bits_twice(tiny_run, tmp_path, settings):
    """With dropout. Another seed gives others."""
    run_file = write_run_file(tmp_path, tiny_run)
    for name, seed in (("first", 42), ("second", 42), ("other", 43)):
        train(run_file, 2, {**settings, "deepspeed.zero_optimization.stage": 3, "training.seed": seed,
                            "output": tmp_path / name})
    assert losses_and_norms(tmp_path / "first") == losses_and_norms(tmp_path / "second")
    assert losses_and_norms(tmp_path / "first") != losses_and_norms(tmp_path / "other")


def test_an_fp16_run_resumes_with_its_loss_scale(tiny_run, tmp_path):
    """A scale so high that the first steps overflow, of a window so short that it doubles: both must go on."""
    run_file = write_run_file(tmp_path, tiny_run)
    settings = {"deepspeed.fp16.enabled": "true", "deepspeed.fp16.initial_scale_power": 24,
                "deepspeed.fp16.loss_scale_window": 4, "deepspeed.zero_optimization.stage": 2}
    train(run_file, 2, {**settings, "training.max_steps": 30, "output": tmp_path / "whole"})
    train(run_file, 2, {**settings, "training.max_steps": 13, "output": tmp_path / "parts"})
    train(run_file, 2, {**settings, "training.max_steps": 30, "output": tmp_path / "parts"}, resume="auto")
    whole, parts = metrics(tmp_path / "whole"), metrics(tmp_path / "parts")
    assert len({line["loss_scale"] for line in whole}) > 3
    assert [(line["loss"], line["loss_scale"], line["lr"]) for line in parts] == \
           [(line["loss"], line["loss_scale"], line["lr"]) for line in whole]


def assert_state_went_through_the_disk(folder, steps):
    """Each step reads and writes the weights of the update, Adam's two moments, and at stage 3 the model's weights: of every
    element at least 12 bytes, on one rank or the other. Overflow skips steps, at most half of them here."""
    model = safetensors.torch.load_file(folder / "out/export/model.safetensors")
    elements = sum(tensor.numel() for tensor in model.values())
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    for direction in ("read", "write"):
        moved = sum(event["args"]["bytes"] for event in events if event.get("cat") == "I/O" and event["name"] == direction)
        assert moved >= steps / 2 * 12 * elements, direction


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_the_full_configuration_of_document_002_trains(tiny_run, tmp_path, precision):
    """Its ZeRO-3 file with everything that it sets, offload of optimizer and parameters to NVMe included."""
    config = json.loads((CONFIGS / "document_002_nvme.json").read_text())
    for block in ("offload_optimizer", "offload_param"):
        config["zero_optimization"][block]["nvme_path"] = str(tmp_path)
    config["fp16"]["enabled"] = precision == "fp16"
    config["train_micro_batch_size_per_gpu"] = 2
    config["gradient_accumulation_steps"] = 2
    config["communication_data_type"] = "fp32"  # these two stand in snippets of their own
    config["zero_allow_untested_optimizer"] = True
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    tiny_run["deepspeed"] = "ds_config.json"
    run_file = write_run_file(tmp_path, tiny_run)
    steps = 40
    arguments = train_arguments(run_file, 2, {"training.max_steps": steps, "output": tmp_path / "out"})
    result = tessera(*arguments, "--trace", tmp_path / "timeline.json")
    assert result.code == 0, str(result)
    assert_state_went_through_the_disk(tmp_path, steps)
    lines = metrics(tmp_path / "out")
    assert (lines[-1]["loss_scale"] > 1) == (precision == "fp16"), str(result)
    assert sum(line["loss"] for line in lines[-5:]) < sum(line["loss"] for line in lines[:5])
