"""Norms of gradients that may be spread over ranks, clipping by them, and checks for non-finite values.

A norm that is not finite is -1 where DeepSpeed hands it on as a number. Tensors that are expert-parallel
(`tensor.allreduce` is False) or model-parallel are different on each rank of their group, all others are equal there.
"""

import math

import torch
import torch.distributed as dist

INFINITE = -1.0


def is_expert(parameter):
    return getattr(parameter, "allreduce", True) is False


def is_model_parallel(parameter):
    return bool(getattr(parameter, "model_parallel", False) or getattr(parameter, "tensor_model_parallel", False))


def local_norm(tensors, norm_type=2.0):
    """One norm of all the tensors together; a zero-dimensional float32 tensor on the device of the first."""
    tensors = [tensor for tensor in tensors if tensor is not None and tensor.numel() > 0]
    if not tensors:
        return torch.zeros(())
    norms = torch.stack([torch.linalg.vector_norm(tensor.detach(), norm_type, dtype=torch.float32).to(tensors[0].device)
                         for tensor in tensors])
    return torch.linalg.vector_norm(norms, norm_type)


def summed_over(norm, norm_type, group):
    """The norm of what all ranks of the group hold; as it is without a group."""
    if group is None:
        return norm
    total = norm.clone() if norm_type == math.inf else norm ** norm_type
    dist.all_reduce(total, op=dist.ReduceOp.MAX if norm_type == math.inf else dist.ReduceOp.SUM, group=group)
    return total if norm_type == math.inf else total ** (1.0 / norm_type)


def combine(first, second, norm_type):
    """The norm of two sets of tensors from the norms of each."""
    return torch.linalg.vector_norm(torch.stack([first.to(second.device), second]), norm_type)


def norm_of_parameters(gradients, owners, norm_type, model_parallel_group=None):
    """`owners` are the parameters of the gradients: what is model-parallel counts on every rank of the group, what is
    replicated there once."""
    split = [], []
    for gradient, owner in zip(gradients, owners):
        split[is_model_parallel(owner)].append(gradient)
    everywhere, parts = (local_norm(part, norm_type) for part in split)
    if model_parallel_group is None:
        return combine(parts, everywhere, norm_type)
    return combine(summed_over(parts.to(everywhere.device), norm_type, model_parallel_group), everywhere, norm_type)


def scale_down(tensors, norm, max_norm, epsilon=1e-6):
    """Multiplies the tensors in place by max_norm / norm where that is less than 1."""
    factor = torch.clamp(max_norm / (norm + epsilon), max=1.0)
    for tensor in tensors:
        tensor.detach().mul_(factor.to(tensor.device))


def number_or_infinite(norm):
    """A Python float; INFINITE for what is not finite."""
    value = float(norm)
    return value if math.isfinite(value) else INFINITE


def has_overflow(tensor):
    """A zero-dimensional boolean tensor: is any value infinite or not a number."""
    return ~torch.isfinite(tensor).all()
