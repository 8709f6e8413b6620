"""One plain program with a pipeline for whichever package `deepspeed` this Python finds, ours or DeepSpeed's, as two ranks.

    pipeline_peer_runs.py      prints JSON, {case: [losses of the steps, loss of an evaluation]}
"""

import json

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.utils import set_random_seed
from deepspeed.utils import RepeatingLoader
from torch import nn

from pipeline_cases import CASES

WORDS, WIDTH = 19, 16


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH) * 0.3)

    def forward(self, ids):
        return self.weight[ids]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.widen, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.widen(self.norm(x))))


def logits(words, x):
    return x @ words.weight.T


def loss_of(output, labels):
    return nn.functional.cross_entropy(output.flatten(0, 1), labels.flatten())


def seeded(seed):
    torch.manual_seed(int(seed))  # DeepSpeed counts layers in NumPy's numbers, which its own function does not take


def run(name):
    stage, how, more = CASES[name]
    set_random_seed(3)
    model = PipelineModule([TiedLayerSpec("words", Words), *[LayerSpec(Block) for _ in range(4)], TiedLayerSpec("words", Words, forward_fn=logits)],
                           num_stages=2, loss_fn=loss_of, seed_layers=True, seed_fn=seeded, **how)
    generator = torch.Generator().manual_seed(11)
    rows = list(torch.randint(WORDS, (24, 2, 6), generator=generator))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
        training_data=[(row[0], row[1]) for row in rows], config={
            "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "steps_per_print": 1000,
            "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": stage},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 3, "warmup_type": "linear"}}, **more})
    losses = [float(engine.train_batch()) for _ in range(8)]
    held_out = iter(RepeatingLoader([(torch.stack([row[0] for row in rows[:2]]), torch.stack([row[1] for row in rows[:2]]))]))
    return losses, float(engine.eval_batch(held_out))


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    results = {name: run(name) for name in CASES}
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
    dist.barrier()
