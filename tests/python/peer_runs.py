"""One plain script for whichever package `deepspeed` this Python finds, ours or DeepSpeed's, as two ranks: the cases of peer_cases.py, each
with accumulation, clipping and a schedule.

    peer_runs.py FOLDER CASE…      prints JSON, {case: losses}; saves the weights of each case as FOLDER/<case>.pt
"""

import contextlib
import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from peer_cases import CASES

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
        return nn.functional.cross_entropy(self.head(x).float().flatten(0, 1), labels.flatten())


@contextlib.contextmanager
def no_empty_step():
    """At stage 0 in 16 bits DeepSpeed makes the optimizer's state by a step with gradients of zero. It decays the weights once more and
    counts, so that Adam corrects its bias as if a step further on. This leaves it out."""
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer

    step = FP16_Optimizer.initialize_optimizer_states
    FP16_Optimizer.initialize_optimizer_states = lambda self: None
    yield
    FP16_Optimizer.initialize_optimizer_states = step


def is_deepspeeds_own():
    return "tessera" not in deepspeed.__version__


def run(name, folder):
    wanted = CASES[name]
    torch.manual_seed(0)
    model = Model()
    if wanted["rounded"]:
        model.to({"bf16": torch.bfloat16, "fp16": torch.float16}[wanted["precision"]]).float()
    without = no_empty_step() if wanted["without_empty_step"] and is_deepspeeds_own() else contextlib.nullcontext()
    with without:
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
            "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": ACCUMULATION, "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 3, "warmup_type": "linear"}},
            **wanted["config"]})
    generator = torch.Generator().manual_seed(10 + dist.get_rank())
    losses = []
    for _ in range(STEPS * ACCUMULATION):
        ids, labels = torch.randint(29, (2, 2, 6), generator=generator)
        loss = engine(ids, labels)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=wanted["config"]["zero_optimization"]["stage"] == 3):
        if dist.get_rank() == 0:
            torch.save({key: value.detach().float().clone() for key, value in model.state_dict().items()}, Path(folder) / f"{name}.pt")
    return losses


def main(folder, *names):
    if is_deepspeeds_own():  # it refuses fp16 on processors without instructions for it, where torch computes it nevertheless
        deepspeed.get_accelerator().is_fp16_supported = lambda: True
    deepspeed.init_distributed("gloo")
    # DeepSpeed's stage 3 puts its own linear layer into torch, for all that follows in the process: 16 bits come before it.
    order = sorted(names or CASES, key=lambda name: (name.startswith("fp32"), "its own linear layer" in name))
    losses = {name: run(name, folder) for name in order}
    if dist.get_rank() == 0:
        print(json.dumps(losses), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
