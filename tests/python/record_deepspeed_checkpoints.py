"""Records the small DeepSpeed checkpoints that the tests of the import read. Run it where DeepSpeed is installed:

    .venv-peers/bin/python tests/python/record_deepspeed_checkpoints.py

Each case is one training of five Adam steps on the CPU. recorded/<case>/ then holds the checkpoint as DeepSpeed wrote it,
and recorded/<case>.expected.pt what DeepSpeed itself says that the weights and the moments are: plain tensors,
{"weight": {name: tensor}, "exp_avg": {...}, "exp_avg_sq": {...}}.
"""

import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402
from deepspeed.utils import (lazy_init_hp_params_optimizer_state, safe_get_full_fp32_param,  # noqa: E402
                             safe_get_full_optimizer_state)
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint  # noqa: E402

from recorded_model import make_model, param_groups  # noqa: E402

RANKS = 2
RECORDED = Path(__file__).resolve().parent / "recorded"
CASES = {  # what goes into the ds_config beside the batch
    "zero2_bf16": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "gradient_accumulation_steps": 2},
    "zero2_round_robin": {"zero_optimization": {"stage": 2, "round_robin_gradients": True}, "bf16": {"enabled": True}},
    "zero2_elastic": {"zero_optimization": {"stage": 2, "elastic_checkpoint": True}},
    "zero3_bf16": {"zero_optimization": {"stage": 3, "sub_group_size": 30, "stage3_param_persistence_threshold": 20},
                   "bf16": {"enabled": True}},
    "zero1_fp32": {"zero_optimization": {"stage": 1}},
    "zero2_fp16": {"zero_optimization": {"stage": 2, "parameter_alignment": True},
                   "fp16": {"enabled": True, "initial_scale_power": 18, "hysteresis": 1}},
    "zero0_fp32": {"zero_optimization": {"stage": 0}},
}


def train(rank, name, config, folder):
    torch.manual_seed(7)
    model = make_model()
    groups = param_groups(model, count=1 if name.startswith("zero0") else 2)
    steps = 5
    config = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True, "gradient_clipping": 1.0, **config}
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=0.01), config=config)
    dtype = next(iter(engine.module.parameters())).dtype
    torch.manual_seed(100 + rank)
    for _ in range(steps * config.get("gradient_accumulation_steps", 1)):
        loss = engine(torch.randn(4, 5, dtype=dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(folder)
    if hasattr(engine.optimizer, "single_partition_of_fp32_groups"):  # the states began to exist after DeepSpeed looked
        for params, flat in zip(engine.optimizer.bit16_groups, engine.optimizer.single_partition_of_fp32_groups):
            lazy_init_hp_params_optimizer_state(params, flat, engine.optimizer.optimizer.state)
    expected = {"weight": {}, "exp_avg": {}, "exp_avg_sq": {}}
    for key, value in engine.module.named_parameters():
        if not value.requires_grad:
            with deepspeed.zero.GatheredParameters([value], enabled=hasattr(value, "ds_id")):
                expected["weight"][key] = value.detach().clone()
            continue
        if name.startswith("zero0"):
            state = engine.optimizer.state[value]
            full = {"weight": value.detach(), "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}
        else:
            full = {"weight": safe_get_full_fp32_param(value)}
            full.update({kind: safe_get_full_optimizer_state(value, kind) for kind in ("exp_avg", "exp_avg_sq")})
        for kind, tensor in full.items():
            expected[kind][key] = tensor.detach().reshape(getattr(value, "ds_shape", value.shape)).clone()
    if "round_robin" in name:  # the functions above do not know of that order in DeepSpeed 0.19.8; its conversion does
        whole = get_fp32_state_dict_from_zero_checkpoint(folder)
        expected = {"weight": {key: whole[key] for key in expected["weight"]}}
    torch.distributed.barrier()
    if rank == 0:
        torch.save(expected, Path(folder) / "expected.pt")
    torch.distributed.barrier()


def run_rank(rank, port, folder):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_SIZE=str(RANKS),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    get_accelerator().is_fp16_supported = lambda: True  # the CPU can, slowly; DeepSpeed asks for instructions of its own
    for name, config in CASES.items():
        try:
            train(rank, name, config, Path(folder) / name)
        except Exception:
            print(f"rank {rank}: {name} failed", flush=True)
            raise


def keep(folder):
    for name in CASES:
        for script in (folder / name).glob("*.py"):  # DeepSpeed's own, copied beside each checkpoint
            script.unlink()
        shutil.move(folder / name / "expected.pt", RECORDED / f"{name}.expected.pt")
        shutil.rmtree(RECORDED / name, ignore_errors=True)
        shutil.copytree(folder / name, RECORDED / name)


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=run_rank, args=(rank, port, folder)) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            sys.exit("a rank failed")
        RECORDED.mkdir(exist_ok=True)
        keep(Path(folder))


if __name__ == "__main__":
    main()
