"""One plain script for whichever package `deepspeed` this Python finds, ours or DeepSpeed's, as two ranks: stages 0 to 3,
with accumulation. Prints JSON: {"<stage>": losses}; saves the weights of each stage in the folder that is its argument.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

STEPS, ACCUMULATION = 5, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.widen = nn.Linear(16, 48)
        self.narrow = nn.Linear(48, 16)

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.widen(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(29, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 29)

    def forward(self, ids, labels):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def run(stage, folder):
    torch.manual_seed(0)
    model = Model()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": ACCUMULATION, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 3,
                                                     "warmup_type": "linear"}},
        "zero_optimization": {"stage": stage}})
    generator = torch.Generator().manual_seed(10 + dist.get_rank())
    losses = []
    for _ in range(STEPS * ACCUMULATION):
        ids, labels = torch.randint(29, (2, 2, 6), generator=generator)
        loss = engine(ids, labels)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        if dist.get_rank() == 0:
            torch.save({name: value.detach().clone() for name, value in model.state_dict().items()},
                       Path(folder) / f"{stage}.pt")
    return losses


def main(folder):
    deepspeed.init_distributed("gloo")
    losses = {stage: run(stage, folder) for stage in range(4)}
    if dist.get_rank() == 0:
        print(json.dumps(losses), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
