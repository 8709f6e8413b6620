"""A small model that has what makes sharding hard, its data for every rank, and how it trains: on the engine, and plainly."""

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

VOCABULARY, WIDTH = 29, 16

class Block(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 3 * width)
        self.narrow = nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.widen(self.norm(x))))


class Model(nn.Module):
    """Tied weights, repeated blocks, a parameter of the model itself. `recomputes`: None, "reentrant" or "plain"."""

    def __init__(self, blocks=3, recomputes=None):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.recomputes = recomputes

    def forward(self, ids, labels):
        x = self.embedding(ids)
        for block in self.blocks:
            if self.recomputes:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.recomputes == "reentrant")
            else:
                x = block(x)
        logits = self.head(x * self.scale)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def made(**options):
    torch.manual_seed(0)
    return Model(**options)


def config(stage, accumulation=1, optimizer=True, **more):
    named = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}} if optimizer else {}
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation, **named,
            "zero_optimization": {"stage": stage, "stage3_max_live_parameters": 0, "stage3_param_persistence_threshold": 0}, **more}


def batch(number):
    """Of all ranks."""
    generator = torch.Generator().manual_seed(100 + number)
    return torch.randint(VOCABULARY, (2, dist.get_world_size(), 2, 6), generator=generator)


def own(number):
    ids, labels = batch(number)
    return ids[dist.get_rank()], labels[dist.get_rank()]


def trained(engine, steps=4, accumulation=1, first=0):
    losses, norms = [], []
    for number in range(first, first + steps * accumulation):
        loss = engine(*own(number))
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
        if (number + 1) % accumulation == 0:
            norms.append(float(engine.get_global_grad_norm()))
    return losses, norms


def plainly_trained(model, optimizer, steps=4, accumulation=1, scheduler=None, clip=1.0):
    """The same on whole batches: rank 0's losses, norms before clipping."""
    losses, norms = [], []
    for number in range(steps * accumulation):
        ids, labels = batch(number)
        for rank in range(dist.get_world_size()):
            loss = model(ids[rank], labels[rank])
            (loss / dist.get_world_size() / accumulation).backward()
            if rank == dist.get_rank():
                losses.append(float(loss))
        if (number + 1) % accumulation == 0:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
    return losses, norms


def start(model=None, **arguments):
    return deepspeed.initialize(model=model if model is not None else made(), **arguments)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
