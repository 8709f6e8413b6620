"""DeepSpeed's checkpoints to Tessera's and back. recorded/ is what record_deepspeed_checkpoints.py made with DeepSpeed."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import peers
import pytest
import torch
from ranks import environment
from tessera_runs import REPOSITORY, TESSERA, tessera

RECORDED = Path(__file__).resolve().parent / "recorded"
CASES = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())

from tessera import _core, export_deepspeed, import_deepspeed
from tessera._core import CheckpointReader
from tessera.import_deepspeed import load


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str


def convert(module, *args):
    """The program in this process, since each new one would import torch."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = {"import_deepspeed": import_deepspeed, "export_deepspeed": export_deepspeed}[module].main([*map(str, args)])
    return Result(code, out.getvalue(), err.getvalue())


def converted(module, *args):
    result = convert(module, *args)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(module, *args):
    """The one message of a conversion that must fail."""
    result = convert(module, *args)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr, result.stderr
    assert "\n  where: " in result.stderr and "\n  fix:   " in result.stderr, result.stderr
    return result.stderr


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """(name, the folder with its Tessera checkpoint)."""
    folder = tmp_path_factory.mktemp(request.param)
    converted("import_deepspeed", RECORDED / request.param, "--to", folder)
    return request.param, folder


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def load_plain(name):
    return load(next((RECORDED / name).glob("global_step*/*mp_rank_00_model_states.pt")))


def test_every_weight_and_moment_has_deepspeeds_bits(case):
    name, folder = case
    checkpoint = CheckpointReader(folder)
    expected = torch.load(RECORDED / f"{name}.expected.pt")
    assert set(checkpoint.tensors) == set(expected["weight"])
    assert expected["weight"].keys() >= {"first.weight", "scale"}
    for kind, tensors in expected.items():
        for key, value in tensors.items():
            assert same_bits(checkpoint.tensor(key, kind), value), f"{kind} {key}"
    assert checkpoint.tensors["scale"]["kinds"] == ["weight"]  # it is frozen
    assert checkpoint.aliases == {"last.weight": "first.weight"}


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("zero3")], indirect=True)  # whose file holds no weights
def test_the_weights_are_those_that_the_model_computed_with(case):
    name, folder = case
    checkpoint = CheckpointReader(folder)
    module = load_plain(name)["module"]
    for key in checkpoint.tensors:
        assert same_bits(checkpoint.tensor(key, "weight").to(module[key].dtype), module[key]), key


def test_counters_and_loss_scale_are_carried_over(case):
    name, folder = case
    manifest = CheckpointReader(folder)
    state, there = manifest.engine_state, load_plain(name)
    gas = 2 if name == "zero2_bf16" else 1
    assert manifest.tag == "global_step5" and manifest.client_state == {}
    assert (state["global_steps"], state["micro_steps"]) == (5, 5 * gas)
    assert state["global_samples"] == there["global_samples"] == 5 * gas * 8
    assert state["skipped_steps"] == there["skipped_steps"]
    assert manifest.tensors["first.weight"]["steps"] == 5 - state["skipped_steps"]
    if name == "zero2_fp16":
        assert state["skipped_steps"] > 0
        assert state["loss_scaler"]["scale"] == 2.0 ** (18 - state["skipped_steps"])
        assert state["loss_scaler"]["steps"] == 5 and state["loss_scaler"]["hysteresis"] == 1
        assert state["loss_scaler"]["last_overflow"] == state["skipped_steps"] - 1
    else:
        assert state["loss_scaler"]["scale"] == 1


@pytest.mark.skipif(not TESSERA.exists(), reason="tessera is not built")
def test_tessera_accepts_it(case):
    _, folder = case
    result = tessera("checkpoint", "verify", folder)
    assert result.code == 0 and "global_step5 is intact" in result.out, str(result)
    result = tessera("checkpoint", "show", folder)
    assert result.code == 0, str(result)
    for line in ("step 5, saved by 1 rank", "last.weight = first.weight",
                 "first.weight [7, 5]  weight F32, exp_avg F32, exp_avg_sq F32"):
        assert line in result.out, str(result)


def test_there_and_back_keeps_every_bit(case, tmp_path):
    name, folder = case
    converted("export_deepspeed", folder, "--to", tmp_path / "deepspeed")
    files = sorted(path.name for path in (tmp_path / "deepspeed" / "global_step5").iterdir())
    prefix = "bf16_" if name in ("zero2_bf16", "zero2_round_robin", "zero3_bf16") else ""
    assert files == sorted(["mp_rank_00_model_states.pt", f"{prefix}zero_pp_rank_0_mp_rank_00_optim_states.pt"])
    assert (tmp_path / "deepspeed" / "latest").read_text() == "global_step5"
    converted("import_deepspeed", tmp_path / "deepspeed", "--to", tmp_path / "back")
    first, back = CheckpointReader(folder), CheckpointReader(tmp_path / "back")
    for key in ("aliases", "engine_state"):
        there, here = dict(getattr(first, key)), dict(getattr(back, key))
        there.pop("micro_steps", None), here.pop("micro_steps", None)  # DeepSpeed has it from its configuration
        assert there == here
    assert first.tensors.keys() == back.tensors.keys()
    for key, stored in first.tensors.items():
        assert {**stored, "kinds": 0} == {**back.tensors[key], "kinds": 0}
        for kind in stored["kinds"]:
            assert same_bits(first.tensor(key, kind), back.tensor(key, kind)), f"{kind} {key}"


def test_like_takes_order_groups_and_options(tmp_path):
    like = RECORDED / "zero2_bf16"
    converted("import_deepspeed", RECORDED / "zero3_bf16", "--to", tmp_path / "tessera")
    converted("export_deepspeed", tmp_path / "tessera", "--to", tmp_path / "out", "--like", like)
    made = load(tmp_path / "out" / "global_step5" / "mp_rank_00_model_states.pt")
    assert made["param_shapes"] == load_plain("zero2_bf16")["param_shapes"]
    states = load(tmp_path / "out" / "global_step5" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    base = states["optimizer_state_dict"]["base_optimizer_state"]
    assert [group["weight_decay"] for group in base["param_groups"]] == [0.1, 0.0]
    assert [state["step"].item() for state in base["state"].values()] == [5, 5]
    assert [state["exp_avg"].numel() for state in base["state"].values()] == [70, 28]


def test_a_schedule_of_deepspeeds_is_where_it_was(tmp_path):
    """Not where the steps would put it: a program may move its schedule."""
    copy = copy_of("zero2_bf16", tmp_path)
    path = next(copy.glob("*/mp_rank_00_model_states.pt"))
    torch.save({**load_plain("zero2_bf16"), "lr_scheduler": {"last_batch_iteration": 7}}, path)
    converted("import_deepspeed", copy, "--to", tmp_path / "tessera")
    assert CheckpointReader(tmp_path / "tessera").engine_state["last_batch_iteration"] == 7
    converted("export_deepspeed", tmp_path / "tessera", "--to", tmp_path / "back")
    back = load(tmp_path / "back" / "global_step5" / "mp_rank_00_model_states.pt")
    assert back["lr_scheduler"] == {"last_batch_iteration": 7}


def test_the_commands_of_the_documentation(tmp_path):
    def run(*args):
        return subprocess.run([sys.executable, "-m", *map(str, args)], text=True, capture_output=True, timeout=300,
                              env=environment())

    result = run("tessera.import_deepspeed", RECORDED / "zero3_bf16", "--to", tmp_path / "tessera")
    assert result.returncode == 0 and "7 parameters from ZeRO stage 3, step 5" in result.stdout, result.stderr
    result = run("tessera.export_deepspeed", tmp_path / "tessera", "--to", tmp_path / "back")
    assert result.returncode == 0 and "7 parameters, compute dtype bf16" in result.stdout, result.stderr
    result = run("tessera.import_deepspeed", tmp_path / "nowhere", "--to", tmp_path / "tessera")
    assert result.returncode == 2 and result.stderr.startswith("error: no such folder"), result.stderr


def copy_of(name, tmp_path):
    return Path(shutil.copytree(RECORDED / name, tmp_path / "copy"))


def test_a_missing_folder_or_tag(tmp_path):
    assert "no such folder" in refused("import_deepspeed", tmp_path / "nowhere", "--to", tmp_path / "out")
    assert "neither *_model_states.pt nor latest" in refused("import_deepspeed", tmp_path, "--to", tmp_path / "out")
    assert "there is no checkpoint 'other'" in refused("import_deepspeed", RECORDED / CASES[0], "--tag", "other", "--to",
                                                       tmp_path / "out")
    assert "not the name of a checkpoint" in refused("import_deepspeed", RECORDED / CASES[0], "--tag", "../x", "--to", tmp_path / "out")
    assert "there is no Tessera checkpoint" in refused("export_deepspeed", tmp_path, "--to", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_rank(tmp_path, rank):
    copy = copy_of("zero2_bf16", tmp_path)
    next(copy.glob(f"*/bf16_zero_pp_rank_{rank}_*")).unlink()
    message = refused("import_deepspeed", copy, "--to", tmp_path / "out")
    assert "rank 0's file is missing" in message or "2 ranks saved the checkpoint" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
@pytest.mark.parametrize("pattern", ["*optim_states.pt", "*model_states.pt"])
def test_a_damaged_file(tmp_path, damage, pattern):
    copy = copy_of("zero3_bf16", tmp_path)
    path = sorted(copy.glob(f"*/{pattern}"))[-1]
    path.write_bytes({"cut": path.read_bytes()[:-700], "empty": b"", "text": b"no checkpoint"}[damage])
    message = refused("import_deepspeed", copy, "--to", tmp_path / "out")
    assert "cannot be read" in message and path.name in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key, value", [("param_shapes", None), ("param_shapes", [{"first.weight": torch.Size([9, 9])}]),
                                        ("shared_params", 3), ("frozen_param_fragments", {}), ("module", None)])
def test_a_file_of_another_make(tmp_path, key, value):
    copy = copy_of("zero2_elastic", tmp_path)
    path = next(copy.glob("*/mp_rank_00_model_states.pt"))
    torch.save({**load_plain("zero2_elastic"), key: value}, path)
    refused("import_deepspeed", copy, "--to", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_checksums_find_a_changed_byte(tmp_path):
    converted("import_deepspeed", RECORDED / "zero2_bf16", "--to", tmp_path / "tessera")
    shard = tmp_path / "tessera" / "global_step5" / "shard-00000-of-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert "does not match its checksums" in refused("export_deepspeed", tmp_path / "tessera", "--to", tmp_path / "out")


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_that_a_file_names_is_run(tmp_path):
    copy = copy_of("zero2_bf16", tmp_path)
    path = next(copy.glob("*/mp_rank_00_model_states.pt"))
    torch.save({"module": {}, "client": Harmful(str(tmp_path / "made"))}, path)
    message = refused("import_deepspeed", copy, "--to", tmp_path / "out")
    assert "mkdir" in message and path.name in message
    assert not (tmp_path / "made").exists()


def test_arrays_of_numpy_come_along(tmp_path):
    """In the client state; GPT-NeoX keeps its random numbers' state so."""
    kept = {"random": np.random.get_state(), "number": np.float32(0.1), "turned": np.arange(6, dtype=np.int16).reshape(2, 3).T, "flag": np.bool_(True),
            "words": np.array(["a", "bc"])}
    torch.save({"kept": kept}, tmp_path / "file.pt")
    found = load(tmp_path / "file.pt")["kept"]
    assert found["random"][0] == "MT19937" and np.array_equal(found["random"][1], kept["random"][1])
    for name in ("number", "turned", "flag", "words"):
        assert type(found[name]) is type(kept[name]) and found[name].dtype == kept[name].dtype and np.array_equal(found[name], kept[name])


@pytest.mark.parametrize("value", [lambda path: np.array([Harmful(path)], dtype=object), lambda path: np.array([1], dtype=object)], ids=["harmful", "number"])
def test_arrays_of_objects_are_refused(tmp_path, value):
    torch.save({"kept": value(str(tmp_path / "made"))}, tmp_path / "file.pt")
    with pytest.raises(_core.DataError):
        load(tmp_path / "file.pt")
    assert not (tmp_path / "made").exists()


def test_parallel_kinds_that_cannot_be_imported(tmp_path):
    copy = copy_of("zero2_bf16", tmp_path)
    first = next(copy.glob("*/mp_rank_00_model_states.pt"))
    shutil.copy(first, first.with_name("mp_rank_01_model_states.pt"))
    assert "tensor-, pipeline- or expert-parallel" in refused("import_deepspeed", copy, "--to", tmp_path / "out")


def test_an_existing_checkpoint_is_not_replaced(case):
    name, folder = case
    before = (folder / "global_step5" / "manifest.json").read_bytes()
    assert "already" in refused("import_deepspeed", RECORDED / name, "--to", folder)
    assert (folder / "global_step5" / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["global_step5", "latest"]


@pytest.mark.parametrize("damage", ["shard cut", "no shard", "manifest"])
def test_a_damaged_tessera_checkpoint(tmp_path, damage):
    converted("import_deepspeed", RECORDED / "zero2_bf16", "--to", tmp_path / "tessera")
    manifest = tmp_path / "tessera" / "global_step5" / "manifest.json"
    shard = manifest.with_name("shard-00000-of-00001.safetensors")
    if damage == "shard cut":
        shard.write_bytes(shard.read_bytes()[:-4])
    elif damage == "no shard":
        shard.unlink()
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "tensors": {"a": {}}}))
    assert "damaged" in refused("export_deepspeed", tmp_path / "tessera", "--to", tmp_path / "out")
    assert not (tmp_path / "out" / "latest").exists()


ASK_DEEPSPEED = """
import sys, torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
for folder in sys.argv[1:]:
    whole = get_fp32_state_dict_from_zero_checkpoint(folder)
    torch.save({name: value.clone() for name, value in whole.items()}, folder + "/whole.pt")
"""


RESUME_IN_DEEPSPEED = """
import os, socket, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(free.getsockname()[1]))
sys.path.insert(0, sys.argv[1])
from record_deepspeed_checkpoints import deepspeed, make_model, torch
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
model = make_model()
trainable = [value for value in model.parameters() if value.requires_grad]
groups = [{"params": [value for value in trainable if value.dim() > 1]},
          {"params": [value for value in trainable if value.dim() == 1]}]
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=0.5), config={
    "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}})
engine.load_checkpoint(sys.argv[2], load_module_strict=False)  # not strict: buffers are not carried over
assert engine.global_steps == 5
torch.save({"module": engine.module.state_dict(),
            "zero": [flat.detach().clone() for flat in engine.optimizer.single_partition_of_fp32_groups],
            "optimizer": engine.optimizer.optimizer.state_dict()}, sys.argv[2] + "/resumed.pt")
engine.backward(engine(torch.ones(4, 5, dtype=torch.bfloat16)).float().square().mean())
engine.step()
assert engine.optimizer.optimizer.state_dict()["state"][0]["step"] == 6
"""


def with_deepspeed(test):
    for mark in peers.needs_deepspeed:
        test = mark(test)
    return test


@pytest.fixture
def deepspeed():
    """Runs a text as a program where DeepSpeed is installed."""
    def run(text, *args):
        result = subprocess.run([peers.PYTHON, "-c", text, *args], text=True, capture_output=True, timeout=500,
                                env={**os.environ, **peers.environment()})
        assert result.returncode == 0, result.stderr

    return run


@with_deepspeed
def test_deepspeed_goes_on_from_an_export(tmp_path, deepspeed):
    converted("import_deepspeed", RECORDED / "zero3_bf16", "--to", tmp_path / "tessera")
    converted("export_deepspeed", tmp_path / "tessera", "--to", tmp_path / "out", "--like", RECORDED / "zero2_bf16")
    deepspeed(RESUME_IN_DEEPSPEED, Path(__file__).resolve().parent, tmp_path / "out")
    expected = torch.load(RECORDED / "zero3_bf16.expected.pt")
    resumed = torch.load(tmp_path / "out" / "resumed.pt")
    assert same_bits(resumed["module"]["scale"], expected["weight"]["scale"])
    assert [group["lr"] for group in resumed["optimizer"]["param_groups"]] == [0.01, 0.01]
    for index, group in enumerate(load_plain("zero2_bf16")["param_shapes"]):
        def flat(kind):
            return torch.cat([expected[kind][name].reshape(-1) for name in group])

        state = resumed["optimizer"]["state"][index]
        assert state["step"] == 5
        for kind, value in {"weight": resumed["zero"][index], "exp_avg": state["exp_avg"],
                            "exp_avg_sq": state["exp_avg_sq"]}.items():
            assert same_bits(value[:flat(kind).numel()], flat(kind)), f"{kind} of group {index}"


@with_deepspeed
def test_deepspeed_gets_the_same_weights_from_an_export(tmp_path, deepspeed):
    """All cases in one process: DeepSpeed takes long to import."""
    for name in CASES:
        converted("import_deepspeed", RECORDED / name, "--to", tmp_path / name)
        converted("export_deepspeed", tmp_path / name, "--to", tmp_path / f"{name}.back")
    deepspeed(ASK_DEEPSPEED, *(tmp_path / f"{name}.back" for name in CASES))
    for name in CASES:
        expected = torch.load(RECORDED / f"{name}.expected.pt")["weight"]
        whole = torch.load(tmp_path / f"{name}.back" / "whole.pt")
        assert whole.keys() == expected.keys() | {"last.weight"}
        for key, value in expected.items():
            assert same_bits(whole[key], value), f"{name} {key}"
        assert same_bits(whole["last.weight"], expected["first.weight"])
