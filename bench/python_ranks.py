"""One rank of bench/python, ours or DeepSpeed's: whichever package `deepspeed` this Python finds.

    python_ranks.py CONFIG MICRO_BATCH LENGTH

Prints "first" once the first step is done, then for each line on rank 0's stdin, a number of steps, "step" and the
seconds that a step took on average; at the end "memory" and the peak resident bytes of the largest rank, and "loss".
"""

import json
import resource
import sys
import time

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

VOCABULARY, WIDTH, LAYERS, HEADS = 30522, 512, 4, 8  # 28.5 million parameters


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.first_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.second_norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, WIDTH)
        x = self.first_norm(x + self.out(attended))
        return self.second_norm(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    """A masked language model: post-norm layers, tied head."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(512, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids, labels):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), labels.flatten())


def main(config, micro_batch, length):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Bert()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    generator = torch.Generator().manual_seed(dist.get_rank())
    ids, labels = torch.randint(VOCABULARY, (2, micro_batch, length), generator=generator)
    leads = dist.get_rank() == 0

    def steps(count):
        for _ in range(count):
            loss = engine(ids, labels)
            engine.backward(loss)
            engine.step()
        return loss

    loss = steps(1)
    if leads:
        print("first", flush=True)
    while True:
        count = [int(sys.stdin.readline() or 0) if leads else None]
        dist.broadcast_object_list(count)
        if count[0] == 0:
            break
        begun = time.perf_counter()
        loss = steps(count[0])
        dist.barrier()
        if leads:
            print("step", (time.perf_counter() - begun) / count[0], flush=True)
    peak = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024])
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if leads:
        print("memory", peak.item(), flush=True)
        print("loss", float(loss), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
