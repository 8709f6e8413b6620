"""The model of the recorded checkpoints, and how its optimizer groups it."""

import torch


def make_model():
    """Layers of odd sizes: `scale` is frozen, `last.weight` is `first.weight`, `seen` is a buffer."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(5, 7)
            self.middle = torch.nn.Linear(7, 5, bias=False)
            self.scale = torch.nn.Parameter(torch.randn(5), requires_grad=False)
            self.last = torch.nn.Linear(5, 7)
            self.last.weight = self.first.weight
            self.norm = torch.nn.LayerNorm(7)
            self.register_buffer("seen", torch.arange(3.0))

        def forward(self, x):
            return self.norm(self.last(self.middle(torch.tanh(self.first(x))) * self.scale))

    return Model()


def param_groups(model, count=2):
    """Matrices with weight decay and the rest without, or all as one."""
    trainable = [value for value in model.parameters() if value.requires_grad]
    if count == 1:
        return [{"params": trainable, "weight_decay": 0.1}]
    return [{"params": [value for value in trainable if value.dim() > 1], "weight_decay": 0.1},
            {"params": [value for value in trainable if value.dim() == 1], "weight_decay": 0.0}]
