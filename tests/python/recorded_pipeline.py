"""The pipeline of the recorded checkpoints (recorded_pipelines/), and what it is trained on: the same batches at any number of stages."""

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

WORDS, WIDTH, ROWS, BEFORE, AFTER = 11, 6, 8, 3, 3
CASES = {  # stages, ZeRO stage, more of the configuration
    "1_stage_zero1": (1, 1, {}),
    "2_stages_zero0": (2, 0, {}),
    "2_stages_zero1": (2, 1, {"gradient_clipping": 0.5}),
    "4_stages_zero1_bf16": (4, 1, {"bf16": {"enabled": True}}),
}


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH) * 0.5)

    def forward(self, ids):
        return self.weight[ids]


class Block(nn.Module):
    """`scale` is frozen, `seen` is a buffer."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5, requires_grad=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("seen", torch.arange(3.0))

    def forward(self, x):
        return x + torch.tanh(self.mix(self.norm(x))) * self.scale


def logits(words, x):
    return x @ words.weight.T


def loss_of(output, labels):
    return nn.functional.cross_entropy(output.flatten(0, 1).float(), labels.flatten())


def seeded(seed):
    torch.manual_seed(int(seed))


def module(stages, topology=None):
    layers = [TiedLayerSpec("words", Words), LayerSpec(Block), lambda x: x * 1.5, LayerSpec(Block), nn.Tanh(), LayerSpec(Block),
              TiedLayerSpec("words", Words, forward_fn=logits)]
    return PipelineModule(layers, num_stages=stages, topology=topology, loss_fn=loss_of, seed_layers=True, seed_fn=seeded, partition_method="uniform")


def settings(zero_stage, more):
    return {"train_batch_size": ROWS, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1000,
            "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": zero_stage}, **more}


def optimizer_of(model):
    return torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.02, weight_decay=0.1)


def batches(engine, first, count):
    """This data-parallel rank's micro batches of each step."""
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(step)
        ids, labels = (torch.randint(WORDS, (ROWS, 5), generator=generator) for _ in range(2))
        for row in range(engine.grid.get_data_parallel_rank(), ROWS, engine.grid.get_data_parallel_world_size()):
            yield ids[row:row + 1], labels[row:row + 1]


def losses(engine, first, count):
    read = batches(engine, first, count)
    return [float(engine.train_batch(read)) for _ in range(count)]
