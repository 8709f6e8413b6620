"""What programs with tensor-parallel layers of their own bring, as Megatron-LM has it."""

import torch
import torch.distributed as dist
from torch import nn


class Summed(torch.autograd.Function):
    """What row-parallel ranks add up: summed forward, passed on backward."""

    @staticmethod
    def forward(context, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class Copied(torch.autograd.Function):
    """What column-parallel ranks share: passed on forward, summed backward."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


def part_of(parameter, dim, rank, size):
    part = nn.Parameter(parameter.detach().chunk(size, dim)[rank].clone())
    part.tensor_model_parallel, part.partition_dim = True, dim  # Megatron's attributes
    return part
