"""Trains the recorded checkpoints' model and saves with checkpoint.format "deepspeed".

    deepspeed_beside_runs.py FOLDER

FOLDER then holds a folder of checkpoints <stage>_<precision> for each of CASES. Prints JSON: of what refuses, the text.
"""

import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from recorded_model import make_model, param_groups  # noqa: E402

CASES = ["0_fp32", "1_fp16", "2_bf16", "3_bf16", "3_fp32"]
TAG = "trained"
CLIENT = {"epoch": 2, "notes": {"of": ["the", "client"]}}
PRECISION = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 40, "hysteresis": 1}}, "fp32": {}}
SUB_GROUP = 6  # elements: smaller than the groups


def start(stage, precision, **checkpoint):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(param_groups(model := make_model()), lr=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage, "sub_group_size": SUB_GROUP},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 3}},
        "checkpoint": {"format": "deepspeed", **checkpoint}, **PRECISION[precision]})[0]


def train_and_save(folder, stage, precision):
    engine = start(stage, precision)
    dtype = next(engine.module.parameters()).dtype
    while engine.global_steps - engine.skipped_steps < 3:
        generator = torch.Generator().manual_seed(10 * engine.global_steps + (dist.get_rank() if dist.is_initialized() else 0))
        loss = engine(torch.randn(4, 5, generator=generator).to(dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(str(folder), tag=TAG, client_state=CLIENT)
    engine.destroy()


def main(folder):
    deepspeed.init_distributed("gloo")
    for case in CASES:
        stage, precision = case.split("_")
        train_and_save(Path(folder) / case, int(stage), precision)
    try:
        start(2, "fp32", async_save=True)
    except ValueError as error:
        print(json.dumps(str(error)), flush=True)
    if dist.is_initialized():
        dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
