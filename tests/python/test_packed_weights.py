"""LoRA over a base quantized by bitsandbytes from Python: its bytes are sharded at stage 3, and the numbers are those of any stage, of
PEFT and torch alone, from any checkpoint, and of a model made under zero.Init."""

from pathlib import Path

import pytest
import torch
from ranks import run_for_json
from safetensors.torch import load_file

PROGRAM = Path(__file__).resolve().parent / "packed_weights_runs.py"
KINDS = ("nf4", "nf4 stored as bf16", "int8")
LAYERS, LINEAR, HIDDEN, WIDE, KV = 2, 7, 128, 256, 64
ELEMENTS = LAYERS * (2 * HIDDEN * HIDDEN + 2 * KV * HIDDEN + 3 * WIDE * HIDDEN)  # of the linear layers, all of which are quantized


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(scope="module")
def runs(folder):
    return run_for_json(PROGRAM, folder, "the_same_at_every_stage", "variants", "saved", "loaded", "merged", "made_under_zero_init",
                        "peak_of_initialize", timeout=600)


def packed_bytes(kind):
    return ELEMENTS if kind == "int8" else ELEMENTS // 2


@pytest.mark.parametrize("kind", KINDS)
def test_losses_norms_and_gradients_are_the_same_bits_at_every_stage_and_those_of_torch(runs, kind):
    run = runs["the_same_at_every_stage"][kind]
    for key in ("losses", "norms", "gradients"):
        assert run["3"][key] == run["2"][key] == run["0"][key]
    assert run["3"]["losses"] == pytest.approx(run["plain"]["losses"], rel=2e-6)
    assert run["3"]["norms"] == pytest.approx(run["plain"]["norms"], rel=1e-5)
    assert len({*run["3"]["losses"]}) == 3 and all(any(step) for step in run["3"]["gradients"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_holds_its_part_of_the_bytes_at_stage_3_alone(runs, kind):
    run = runs["the_same_at_every_stage"][kind]
    for stage in ("0", "2"):
        assert run[stage]["weights"] == LAYERS * LINEAR
        assert run[stage]["held"] == run[stage]["whole"] == packed_bytes(kind)
        assert run[stage]["byte units"] == 0
    sharded = run["3"]
    assert (sharded["weights"], sharded["whole"], sharded["held"]) == (LAYERS * LINEAR, packed_bytes(kind), 0)
    assert (sharded["byte units"], sharded["in units"]) == (LAYERS, packed_bytes(kind))
    # All else is sharded, too: embeddings, head and norms in fp32, of adapters weight, gradient and two states.
    others = 2 * 61 * HIDDEN + HIDDEN * (2 * LAYERS + 1)
    adapters = LAYERS * 4 * (2 * 2 * HIDDEN + 2 * (KV + HIDDEN) + 3 * (WIDE + HIDDEN))
    want = (packed_bytes(kind) + 4 * others + 16 * adapters) / 2
    padding = 32 * 16 * 100  # at most, of all parameters
    assert want <= sharded["state bytes"] < want + padding


@pytest.mark.parametrize("name", ["bf16", "recomputed", "evaluated in between", "on the host", "persistent"])
def test_the_same_bits_whenever_and_from_wherever_a_weight_comes(runs, name):
    run = runs["variants"][name]
    assert run["3"] == run["0"] and len({*run["3"]["losses"]}) == 3


def test_a_checkpoint_is_loaded_across_stages(runs):
    saved = runs["saved"]
    assert saved["3"] == saved["0"]
    assert len(runs["loaded"]) == 8
    for way, run in runs["loaded"].items():
        assert run == {key: saved["0"][key] for key in ("adapters", "then")}, way


def test_one_rank_loads_what_two_saved(runs, folder):
    for way, run in run_for_json(PROGRAM, folder, "loaded", count=1)["loaded"].items():
        assert run["adapters"] == runs["saved"]["0"]["adapters"], way


def test_zero_to_fp32_recovers_all_but_the_base(runs):
    saved = runs["saved"]["3"]
    assert saved["recovered adapters"] == saved["adapters"]
    assert len([name for name in saved["recovered"] if "lora_" in name]) == 2 * LAYERS * LINEAR
    assert not [name for name in saved["recovered"] if name.endswith("proj.base_layer.weight")]
    assert [name for name in saved["recovered"] if "embed_tokens" in name]


def test_whole_weights_and_adapters_are_saved_alike(runs, folder):
    for file in ("model.bin", "adapters.bin"):
        zero, three = (torch.load(folder / f"weights {stage}" / file) for stage in (0, 3))
        assert list(three) == list(zero)
        assert all(torch.equal(three[name], zero[name]) for name in zero)
        assert sum(value.numel() for name, value in three.items() if name.endswith("proj.base_layer.weight")) \
            == (ELEMENTS // 2 if file == "model.bin" else 0)
    zero, three = (load_file(folder / f"adapter {stage}" / "adapter_model.safetensors") for stage in (0, 3))
    assert len(three) == 2 * LAYERS * LINEAR
    assert all(torch.equal(three[name], zero[name]) for name in zero)


def test_adapters_are_merged_into_gathered_weights(runs):
    run = runs["merged"]
    assert run["stage 3"] == run["after the engine"] == run["stage 0"]
    assert run["stage 3"]["kinds"] == ["Params4bit"]
    assert run["stage 3"]["merged"] != run["stage 3"]["bytes"]


@pytest.mark.parametrize("kind", KINDS)
def test_under_zero_init_a_rank_holds_its_part_and_the_weight_that_is_being_loaded(runs, kind):
    """DeepSpeed's issues #5637 and #5660: there each rank loads all of it first."""
    run = runs["made_under_zero_init"][kind]
    assert (run["weights"], run["whole"], run["left whole"]) == (LAYERS * LINEAR, packed_bytes(kind), [])
    assert run["same kinds"] and run["gathered"]
    assert run["most"] <= run["whole"] / 2 + run["largest"] < run["whole"]
    assert run["3"] == run["0"] == run["without"]


def test_an_engine_of_partitioned_weights_takes_their_memory_over(runs):
    run = runs["peak_of_initialize"]
    assert run["units"] == 32 + 1
    # Half of all bytes are there before. Of one unit there are some copies at a time, and malloc has freed pieces.
    assert run["at most"] < run["whole"] / 4, run
