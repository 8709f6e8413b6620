"""Checkpoints of pipelines as DeepSpeed writes them, a file for each layer: recorded_pipelines/ is what record_deepspeed_pipelines.py made."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peers import largest_difference, needs_deepspeed, run_deepspeed_for_json
from ranks import run_for_json
from test_deepspeed_checkpoints import converted, refused, same_bits

from tessera._core import CheckpointReader, DataError
from tessera.full_weights import state_dict_of
from tessera.import_deepspeed import load
from tessera.layer_files import TIED, Layer, ends_of_stages, prefix_of

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded_pipelines"
LOSSES = json.loads((RECORDED / "losses.json").read_text())
NAMED = [name for name in LOSSES if "zero0" not in name]  # whose files say which layers are tied
PROGRAM = HERE / "stock_pipeline_runs.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "copy"
    shutil.copytree(RECORDED, folder)
    return run_for_json(PROGRAM, "compare", folder, 1, 2, 4, count=4, timeout=300), list(folder.rglob("*import*"))


@pytest.mark.parametrize("stages", ["1", "2", "4"])
@pytest.mark.parametrize("name", LOSSES)
def test_goes_on_at_any_number_of_stages(runs, name, stages):
    """Weights, moments, frozen parameters and buffers are DeepSpeed's bits; its own losses follow."""
    found = runs[0][name][stages]
    assert found["differs"] == [] and found["compared"] == found["of"] == 16
    rounding = 1e-3 if "bf16" in name else 1e-5  # one stage and four round at other places
    assert largest_difference(found["losses"], LOSSES[name]) <= rounding
    assert runs[1] == []


@pytest.mark.parametrize("name", NAMED)
def test_files_alone_give_the_same_weights(name, tmp_path):
    expected = torch.load(RECORDED / f"{name}.expected.pt")
    converted("import_deepspeed", RECORDED / name, "--to", tmp_path / "tessera")
    checkpoint, whole = CheckpointReader(tmp_path / "tessera"), state_dict_of(RECORDED / name)
    for kind, tensors in expected.items():
        assert tensors.keys() <= set(checkpoint.tensors)
        for key, value in tensors.items():
            assert same_bits(checkpoint.tensor(key, kind), value), f"{kind} {key}"
    assert all(torch.equal(whole[key], value.float()) for key, value in expected["weight"].items())
    assert whole["3.seen"].tolist() == [0, 1, 2]


def test_files_may_name_an_axis_of_tensors(tmp_path):
    """Those of a program whose topology has one, of one rank, as GPT-NeoX's do."""
    shutil.copytree(RECORDED / "2_stages_zero1", tmp_path / "copy")
    for path in (tmp_path / "copy").glob("*/layer_*"):
        path.rename(path.with_name(path.name.replace("-model_states", "-model_00-model_states")))
    assert all(torch.equal(value, state_dict_of(RECORDED / "2_stages_zero1")[key]) for key, value in state_dict_of(tmp_path / "copy").items())


@pytest.mark.parametrize("name", NAMED)
def test_an_export_is_by_layer_and_stage(name, tmp_path):
    """The files, and what lies where in them, are DeepSpeed's own; one data-parallel rank holds all of a stage."""
    converted("import_deepspeed", RECORDED / name, "--to", tmp_path / "tessera")
    converted("export_deepspeed", tmp_path / "tessera", "--to", tmp_path / "out", "--like", RECORDED / name)
    made, there = (folder / "global_step3" for folder in (tmp_path / "out", RECORDED / name))
    assert {path.name for path in made.iterdir()} == {path.name for path in there.iterdir() if "pp_rank_0" in path.name or "zero" not in path.name}
    for path in made.glob("layer_*"):
        ours, theirs = load(path), load(there / path.name)
        assert list(ours) == list(theirs)
        assert all(same_bits(ours[key], theirs[key]) for key in theirs), path.name
    for path in made.glob("mp_rank_*"):
        ours, theirs = load(path), load(there / path.name)
        assert ours["module"] is None and ours.keys() >= theirs.keys() - {"epoch", "sparse_tensor_module_names"}
        for key in ("param_shapes", "mp_world_size", "checkpoint_parallel_dimensions", "global_steps", "skipped_steps"):
            assert ours[key] == theirs[key], key
    converted("import_deepspeed", tmp_path / "out", "--to", tmp_path / "back")
    first, back = CheckpointReader(tmp_path / "tessera"), CheckpointReader(tmp_path / "back")
    for key, stored in first.tensors.items():
        for kind in stored["kinds"]:
            assert same_bits(first.tensor(key, kind), back.tensor(key, kind)), f"{kind} {key}"


@pytest.mark.parametrize("damage, message", [
    ("stage", "the file of stage 1 is missing"), ("optimizer", "the optimizer's files of stage 1 are missing"),
    ("rank", "2 ranks saved the checkpoint, but there are files from 1"), ("tensor ranks", "cut over tensor-parallel ranks"),
    ("twice", "two files for layer 0"), ("no layers", "tensor-, pipeline- or expert-parallel")])
def test_what_is_missing_or_cut_is_named(damage, message, tmp_path):
    shutil.copytree(RECORDED / "2_stages_zero1", tmp_path / "copy")
    folder = tmp_path / "copy" / "global_step3"
    gone = {"stage": "mp_rank_01*", "optimizer": "*mp_rank_01_optim*", "rank": "*pp_rank_1_mp_rank_01_optim*", "no layers": "layer_*"}
    for path in folder.glob(gone.get(damage, "none")):
        path.unlink()
    if damage in ("tensor ranks", "twice"):
        shutil.copy(folder / "layer_00-model_states.pt", folder / f"layer_00-model_{int(damage == 'tensor ranks'):02d}-model_states.pt")
    assert message in refused("import_deepspeed", tmp_path / "copy", "--to", tmp_path / "out")


def test_stage_0_needs_the_module(tmp_path):
    assert "does not say which of its layers are tied" in refused("import_deepspeed", RECORDED / "2_stages_zero0", "--to", tmp_path / "out")


def layer(prefix, count):
    return Layer(prefix, [f"{prefix}{number}" for number in range(count)])


@pytest.mark.parametrize("counts, ends", [
    ([3, 4], [2, 5]), ([3, 1, 3], [2, 4, 5]), ([6], [5]), ([2, 1, 3], [1, 4, 5]), ([2, 4], [1, 5]), ([3, 3], [4, 5]), ([4, 2], None), ([7], None)])
def test_which_layers_a_stage_has_follows_from_what_its_optimizer_counts(counts, ends):
    """A tied layer counts once on each stage that has it."""
    layers = [layer("0.", 2), layer(f"{TIED}a.", 1), layer("2.", 0), layer(f"{TIED}a.", 1), layer("4.", 3)]
    assert ends_of_stages(layers, counts) == ends


def test_the_names_of_a_layer_by_those_that_are_known():
    known = {"1.weight": (2, 3), f"{TIED}a.weight": (4, 3), f"{TIED}b.weight": (5, 3), f"{TIED}b.seen": None, f"{TIED}c.weight": (4, 3)}
    state = {"weight": torch.zeros(5, 3), "seen": torch.zeros(2)}
    assert prefix_of(1, {"weight": torch.zeros(2, 3)}, known) == "1."
    assert prefix_of(3, state, known) == f"{TIED}b."
    assert prefix_of(4, {"frozen": torch.zeros(1)}, known) == "4."
    with pytest.raises(DataError, match=rf"layer 5 may be any of {TIED}a\., {TIED}c\."):
        prefix_of(5, {"weight": torch.zeros(4, 3)}, known)


@pytest.fixture(scope="module")
def saved_layers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    return folder, run_for_json(PROGRAM, "layers", folder, count=4, timeout=300)


def test_a_module_saves_its_layers_and_reads_them_at_other_stages(saved_layers):
    """At ZeRO 3 too, whose parameters are gathered for it."""
    folder, found = saved_layers
    for before, after, differs in found["others"]:
        assert after == pytest.approx(found["loss"], rel=1e-6) and before != pytest.approx(found["loss"], rel=1e-3)
        assert differs == []
    assert found["names"] == [["layer_00-model_states.pt"], "layer_00-model_states.pt"]
    assert found["no files"][0] == "DataError" and "layer 0 has no files, not one" in found["no files"][1]
    whole = torch.load(folder / "whole.pt")
    assert sorted(path.name for path in folder.glob("layer_*")) == [f"layer_{index:02d}-model_states.pt" for index in (0, 1, 3, 4, 5)]
    for index, prefix in ((0, "tied_modules.words."), (1, "1."), (3, "3."), (5, "5.")):
        for name, value in torch.load(folder / f"layer_{index:02d}-model_states.pt").items():
            assert same_bits(value, whole[prefix + name])
        placed = torch.load(folder / "placed" / f"layer_{index:02d}-model_00-model_states.pt")
        assert placed.keys() == torch.load(folder / f"layer_{index:02d}-model_states.pt").keys()
        assert all(same_bits(value, whole[prefix + name]) for name, value in placed.items())
        trained = torch.load(folder / "trained" / f"layer_{index:02d}-model_states.pt")
        assert ("scale" in trained) is False and len(trained) == (1 if index == 0 else 5)


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_deepspeed) for name in NAMED if "4" not in name])
def test_deepspeed_goes_on_from_an_export(name, figure, tmp_path):
    stages = int(name[0])
    converted("import_deepspeed", RECORDED / name, "--to", tmp_path / "tessera")
    converted("export_deepspeed", tmp_path / "tessera", "--to", tmp_path / "out" / name, "--like", RECORDED / name)
    for path in (tmp_path / "out" / name).glob("*/mp_rank_*"):
        content = torch.load(path, weights_only=False)
        torch.save({**content, "epoch": 3}, path)
    theirs = run_deepspeed_for_json(PROGRAM, "load", tmp_path / "out", name, stages, count=stages)
    assert figure(f"fp32, pipeline of {stages} stage{'s' * (stages > 1)}, DeepSpeed goes on from an export", largest_difference(theirs, LOSSES[name])) <= 1e-5


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_deepspeed) for name in LOSSES])
def test_the_recorded_ones_are_what_deepspeed_writes(name, freshly_recorded):
    folder, losses = freshly_recorded
    assert losses[name] == pytest.approx(LOSSES[name], rel=1e-6)
    files = {path.relative_to(folder) for path in (folder / name).rglob("*.pt")}
    assert files == {path.relative_to(RECORDED) for path in (RECORDED / name).rglob("*.pt")}


@pytest.fixture(scope="module")
def freshly_recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    return folder, run_deepspeed_for_json(PROGRAM, "record", folder, count=4)


@pytest.mark.parametrize("program", [pytest.param("read", marks=needs_deepspeed)])
def test_deepspeed_reads_layers_that_a_module_saved(program, saved_layers):
    folder, found = saved_layers
    assert run_deepspeed_for_json(PROGRAM, program, folder, count=4) == pytest.approx(found["loss"], rel=1e-5)
