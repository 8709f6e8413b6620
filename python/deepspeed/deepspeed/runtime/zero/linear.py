"""A linear layer by another name: Tessera releases what autograd saved of a weight with the weight itself, so stage 3
needs no layer of its own."""

import torch
from torch import nn


class LinearModuleForZeroStage3(nn.Linear):
    pass


def zero3_linear_wrap(input, weight, bias=None):
    return torch.nn.functional.linear(input, weight, bias)
