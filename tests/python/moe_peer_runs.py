"""One plain program with experts for whichever package `deepspeed` this Python finds, ours or DeepSpeed's, as two ranks.

    moe_peer_runs.py      prints JSON, {case: [losses of the steps, of all ranks; how many tokens chose each expert at first, on rank 0]}
"""

import json

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import nn

from moe_cases import CASES

WORDS, WIDTH, EXPERTS, ROWS, LENGTH, STEPS = 19, 16, 4, 3, 8, 12


def filled(module, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return module


class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.words, self.head = filled(nn.Embedding(WORDS, WIDTH), 1), filled(nn.Linear(WIDTH, WORDS), 2)
        expert = nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, WIDTH))
        self.layer = MoE(WIDTH, expert, num_experts=EXPERTS, ep_size=2, **how)
        filled(self.layer.deepspeed_moe.gate.wg, 3)
        if how.get("use_residual"):
            filled(self.layer.mlp, 4)
            filled(self.layer.coefficient, 5)
        mine = self.layer.deepspeed_moe.experts.deepspeed_experts
        for number, own in enumerate(mine, dist.get_rank() * len(mine)):
            filled(own, 10 + number)

    def forward(self, ids, labels):
        x = self.words(ids)
        output, balance, self.counts = self.layer(x)
        return nn.functional.cross_entropy(self.head(x + output).flatten(0, 1), labels.flatten()) + 0.1 * balance


def run(name):
    stage, how = CASES[name]
    model = Model(how)
    groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(groups, lr=5e-3, weight_decay=0.1), config={
            "train_micro_batch_size_per_gpu": ROWS, "steps_per_print": 1000, "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": stage}})
    losses, counts = [], None
    for step in range(STEPS):
        ids = torch.randint(WORDS, (2, ROWS, LENGTH), generator=torch.Generator().manual_seed(step % 3))[dist.get_rank()]
        loss = engine(ids, ids.roll(-1, -1))
        counts = counts or model.counts.tolist()
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / 2)
    return losses, counts


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    results = {name: run(name) for name in CASES}
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
    dist.barrier()
