"""Trains a small model and saves it after each step, for whichever package `deepspeed` this Python finds, ours or DeepSpeed's.

    peer_program.py FOLDER STEPS       goes on from the newest checkpoint in FOLDER/checkpoints
    peer_program.py FOLDER load        loads it, and says what it holds: the bits of its weights

Rank 0 adds to FOLDER/rows.jsonl: {"resumed": step}, {"step": …, "loss": hexadecimal}, {"saved": step}, {"weights": digest}.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

CONFIG = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
WIDTH = 128

folder, until = Path(sys.argv[-2]), sys.argv[-1]  # before them comes what the launcher adds


def note(**row):
    if dist.get_rank() == 0:
        with open(folder / "rows.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")


deepspeed.init_distributed()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
checkpoints = folder / "checkpoints"
path, state = engine.load_checkpoint(str(checkpoints)) if checkpoints.is_dir() and os.listdir(checkpoints) else (None, None)
first = state["step"] if path else 0
note(resumed=first)
if until == "load":
    weights = b"".join(p.detach().float().numpy().tobytes() for p in engine.module.parameters())
    note(weights=hashlib.sha256(weights).hexdigest())
    sys.exit(0)

for step in range(first + 1, int(until) + 1):
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1000 * step + dist.get_rank()))
    loss = nn.functional.mse_loss(engine(x), x)
    engine.backward(loss)
    engine.step()
    note(step=step, loss=loss.item().hex())
    engine.save_checkpoint(str(checkpoints), tag=f"step{step}", client_state={"step": step})
    note(saved=step)
