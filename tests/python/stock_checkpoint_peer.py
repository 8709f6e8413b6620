"""Training that DeepSpeed saves and goes on with, and that goes on from the same checkpoint, as two ranks.

    stock_checkpoint_peer.py save FOLDER          with DeepSpeed: stages 1 to 3; losses after the save
    stock_checkpoint_peer.py beside FOLDER        the same with Tessera, in DeepSpeed's files, too
    stock_checkpoint_peer.py load FOLDER STAGE    with whichever package `deepspeed` this Python finds

Prints JSON.
"""

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from peer_runs import Model

BEFORE, AFTER = 5, 4


def start(stage, **blocks):
    torch.manual_seed(stage)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)  # no operator to compile, as DeepSpeed's own is
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 3,
                                                          "total_num_steps": 40, "warmup_type": "linear"}},
        "zero_optimization": {"stage": stage}, **blocks})
    return engine


def losses(engine, first, count):
    found = []
    for number in range(first, first + count):
        generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
        loss = engine(*torch.randint(29, (2, 2, 6), generator=generator))
        engine.backward(loss)
        engine.step()
        found.append(float(loss))
    return {"losses": found, "lr": engine.get_lr()}


def save(folder, **blocks):
    found = {}
    for stage in (1, 2, 3):
        engine = start(stage, **blocks)
        losses(engine, 0, BEFORE)
        engine.save_checkpoint(str(Path(folder) / str(stage)), client_state={"epoch": 3})
        found[stage] = losses(engine, BEFORE, AFTER)
    return found


def beside(folder):
    return save(folder, checkpoint={"format": "deepspeed"})


def load(folder, stage):
    engine = start(int(stage))
    with torch.no_grad(), deepspeed.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
        for parameter in engine.module.parameters():
            parameter.zero_()  # so that nothing but the checkpoint can make the losses equal
    path, client = engine.load_checkpoint(str(Path(folder) / stage))
    assert path is not None
    return {**losses(engine, BEFORE, AFTER), "client": client}


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    result = {"save": save, "beside": beside, "load": load}[sys.argv[1]](*sys.argv[2:])
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    os._exit(0)  # DeepSpeed's threads of shared memory sometimes end the process otherwise
