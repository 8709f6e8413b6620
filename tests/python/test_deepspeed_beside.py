"""checkpoint.format "deepspeed": files that DeepSpeed's programs read, beside Tessera's own, of the same bits."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from deepspeed.utils import zero_to_fp32
from deepspeed_beside_runs import CASES, CLIENT, SUB_GROUP, TAG
from peers import PYTHON, largest_difference, needs_deepspeed, run_deepspeed_for_json
from ranks import environment, run_for_json
from tessera_runs import tessera

from tessera._core import CheckpointReader
from tessera.import_deepspeed import Source, read

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module", params=[1, 2, 3])
def saved(request, tmp_path_factory):
    """(ranks, folder)."""
    folder = tmp_path_factory.mktemp(f"{request.param}_ranks")
    refused = run_for_json(HERE / "deepspeed_beside_runs.py", folder, count=request.param)
    assert "'checkpoint.format' is \"deepspeed\" beside 'checkpoint.async_save'" in refused
    return request.param, folder


def files_of_deepspeed(folder, tmp_path):
    """A copy of them alone."""
    copy = tmp_path / "alone" / TAG
    copy.mkdir(parents=True)
    for path in (folder / TAG).glob("*.pt"):
        shutil.copy(path, copy)
    return copy


def names_at(stage, precision, ranks):
    """As the recorded checkpoints are named, which DeepSpeed wrote."""
    prefix = "bf16_" if precision == "bf16" else ""
    models = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(ranks)] if stage == 3 else ["mp_rank_00_model_states.pt"]
    return sorted([*models, *(f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(ranks))])


@pytest.mark.parametrize("case", CASES)
def test_every_weight_and_moment_has_the_bits_of_the_checkpoint(saved, case, tmp_path):
    ranks, folder = saved
    stage, precision = int(case[0]), case[2:]
    copy = files_of_deepspeed(folder / case, tmp_path)
    assert sorted(path.name for path in copy.iterdir()) == names_at(stage, precision, ranks)
    checkpoint = CheckpointReader(folder / case)
    parameters, aliases, left_out = read(Source(copy))
    assert not left_out and aliases == checkpoint.aliases == {"last.weight": "first.weight"}
    assert {each.name for each in parameters} == set(checkpoint.tensors)
    for each in parameters:
        stored = checkpoint.tensors[each.name]
        assert set(each.kinds) == set(stored["kinds"]) and list(each.shape) == stored["shape"]
        for kind, (_, flat) in each.kinds.items():
            assert torch.equal(flat().view(each.shape), checkpoint.tensor(each.name, kind)), f"{kind} of {each.name}"
        assert each.steps == stored["steps"]
    assert checkpoint.tensors["scale"]["kinds"] == ["weight"] and checkpoint.tensors["norm.bias"]["steps"] > 0


@pytest.mark.parametrize("case", CASES)
def test_programs_that_open_the_files_find_what_deepspeed_puts_there(saved, case):
    ranks, folder = saved
    stage, precision = int(case[0]), case[2:]
    model = torch.load(zero_to_fp32.get_model_state_files(folder / case / TAG)[0], weights_only=False)
    assert {key: model[key] for key in CLIENT} == CLIENT
    assert (model["global_steps"] - model["skipped_steps"], model["dp_world_size"], model["ds_version"]) == (3, ranks, "0.19.8")
    assert model["buffer_names"] == ["seen"] and model["module"]["seen"].float().tolist() == [0, 1, 2]
    assert model["lr_scheduler"] == {"last_batch_iteration": 2}
    assert set(model["module"]) == {"first.weight", "first.bias", "middle.weight", "scale", "last.weight", "last.bias", "norm.weight",
                                    "norm.bias", "seen"}
    assert (model["module"]["first.weight"].numel() == 0) == (stage == 3)
    for path in zero_to_fp32.get_optim_files(folder / case / TAG):
        state = torch.load(path, weights_only=False)["optimizer_state_dict"]
        assert state["zero_stage"] == max(stage, 1)
        assert state["loss_scaler"].dynamic == (precision == "fp16")
        base = state["optimizer_state_dict" if stage == 3 else "base_optimizer_state"]
        assert [group["weight_decay"] for group in base["param_groups"]] == [0.1, 0.0]
        steps = [each["step"] for each in base["state"].values()]
        assert [step.item() for step in steps] == [3] * len(steps) and len({step.data_ptr() for step in steps}) == len(steps)
        if stage == 3:
            assert len(state["fp32_flat_groups"]) == len(base["state"]) > 2  # sub-groups
            assert all(flat.numel() <= SUB_GROUP + 35 for flat in state["fp32_flat_groups"])
        else:
            assert [slice.start for slice in state["param_slice_mappings"][0].values()][:1] == [0]
    if precision == "fp16":
        assert model["skipped_steps"] > 0  # so the state of the loss scaler is one that it came to
        assert state["loss_scaler"].cur_scale == 2.0 ** (40 - model["skipped_steps"])


@pytest.mark.parametrize("case", CASES)
def test_tessera_goes_on_with_its_own(saved, case):
    _, folder = saved
    result = tessera("checkpoint", "verify", folder / case)
    assert result.code == 0 and f"{TAG} is intact" in result.out, str(result)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder of Tessera's checkpoints by stage, the losses after them)."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, run_for_json(HERE / "stock_checkpoint_peer.py", "beside", folder, timeout=600)


class TestBesideDeepSpeed:
    pytestmark = needs_deepspeed

    @pytest.mark.parametrize("stage", ["1", "2", "3"])
    def test_deepspeed_goes_on_from_them(self, trained, stage):
        folder, losses = trained
        found = run_deepspeed_for_json(HERE / "stock_checkpoint_peer.py", "load", folder, stage)
        assert found["client"]["epoch"] == 3
        assert largest_difference(losses[stage]["losses"], found["losses"]) < 1e-5
        assert found["lr"] == losses[stage]["lr"]

    def test_the_script_that_deepspeed_leaves_in_folders_reads_them_here(self, saved, tmp_path):
        """In an environment with Tessera under DeepSpeed's name."""
        script = shutil.copy(next(PYTHON.parents[1].glob("lib/python*/site-packages/deepspeed/utils/zero_to_fp32.py")), tmp_path)
        _, folder = saved
        for case in CASES:
            copy = files_of_deepspeed(folder / case, tmp_path / case)
            result = subprocess.run([sys.executable, script, copy.parent, tmp_path / "out" / case, "--tag", TAG], env=environment(),
                                    capture_output=True, text=True, timeout=120)
            assert result.returncode == 0, result.stderr
            weights = torch.load(tmp_path / "out" / case / "pytorch_model.bin")
            checkpoint = CheckpointReader(folder / case)
            for name in checkpoint.tensors:
                assert torch.equal(weights[name].float(), checkpoint.tensor(name, "weight").float()), f"{case} {name}"
