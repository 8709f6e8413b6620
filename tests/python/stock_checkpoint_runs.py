"""Loads the checkpoints that DeepSpeed recorded (tests/python/recorded) into engines of every stage, on any number of ranks.

    stock_checkpoint_runs.py FOLDER CASE…

FOLDER holds copies of the cases. Prints JSON, {case: {stage: what was found}}; a tensor that is not DeepSpeed's own to the
bit is named under "differs".
"""

import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))
from recorded_model import make_model, param_groups  # noqa: E402

RECORDED = ROOT / "tests" / "python" / "recorded"
PRECISION = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}}}


def start(name, stage):
    torch.manual_seed(1)  # other weights than the recorded ones
    model = make_model()
    model.seen.fill_(-1)
    groups = param_groups(model, count=1 if name.startswith("zero0") else 2)
    for group in groups:
        group["weight_decay"] = 0.5
    optimizer = torch.optim.AdamW(groups, lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** step)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config={
        "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}, **PRECISION.get(name.split("_")[-1], {})})
    return engine


def differing(engine, expected, kinds):
    """Of what is compared; at least the weights of the trained parameters are."""
    found, compared = [], 0
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            with deepspeed.zero.GatheredParameters([parameter]):
                if not torch.equal(parameter.detach().float(), expected["weight"][name].float()):
                    found.append(f"weight {name}")
            continue
        for kind in kinds:
            if name not in expected.get(kind, {}):
                continue
            value = safe_get_full_fp32_param(parameter) if kind == "weight" else \
                safe_get_full_optimizer_state(parameter, kind)
            compared += 1
            if not torch.equal(value, expected[kind][name]):
                found.append(f"{kind} {name}")
    assert compared >= 6, compared
    return found


def load(folder, name, stage, **how):
    engine = start(name, stage)
    path, client = engine.load_checkpoint(str(folder), **how)
    expected = torch.load(RECORDED / f"{name}.expected.pt")
    kinds = ("weight",) if how else ("weight", "exp_avg", "exp_avg_sq")
    dtype = next(engine.module.parameters()).dtype
    found = {
        "path": path, "client": client, "differs": differing(engine, expected, kinds),
        "moments": float(sum(safe_get_full_optimizer_state(parameter, "exp_avg_sq").abs().sum()
                             for parameter in engine.module.parameters() if parameter.requires_grad)),
        "steps": engine.global_steps, "skipped": engine.skipped_steps, "samples": engine.global_samples,
        "lr": [group["lr"] for group in engine.optimizer.param_groups],
        "decay": [group["weight_decay"] for group in engine.optimizer.param_groups],
        "epoch": engine.lr_scheduler.last_epoch, "seen": engine.module.seen.float().tolist(),
        "scale": engine.core.loss_scale,
    }
    loss = engine(torch.ones(4, 5, dtype=dtype)).float().square().mean()
    engine.backward(loss)
    engine.step()
    found["next"] = [engine.global_steps, bool(torch.isfinite(loss))]
    engine.destroy()
    return found


def main(folder, *cases):
    deepspeed.init_distributed("gloo")
    found = {name: {stage: load(Path(folder) / name, name, stage) for stage in range(4)} for name in cases}
    one = Path(folder) / "zero2_bf16"
    found["module only"] = load(one, "zero2_bf16", 2, load_module_only=True)
    found["no optimizer"] = load(one, "zero2_bf16", 3, load_optimizer_states=False)
    found["no schedule"] = load(one, "zero2_bf16", 2, tag="global_step5", load_lr_scheduler_states=False)
    broken = Path(folder) / "broken"
    if broken.exists():
        engine = start("zero2_bf16", 2)
        try:
            engine.load_checkpoint(str(broken))
        except ValueError as error:  # on every rank
            found["broken"] = str(error)
        engine.destroy()
    if dist.is_initialized():
        dist.barrier()
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
