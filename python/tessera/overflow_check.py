"""Checks whether any rank's gradients contain an infinity or a NaN: then no rank may step.

Who has to agree depends on what is spread: ranks of an expert group for experts, of the model-parallel group for tensor
parallelism, all ranks where each has reduced only its own part.
"""

import torch
import torch.distributed as dist

from tessera.gradient_norm import INFINITE, has_overflow, is_expert


class OverflowCheck:
    """`expert_group` is a function, since the groups may be made later than this object."""

    def __init__(self, parameters, expert_group, mpu=None, each_reduces_its_part=False):
        self.params = parameters
        self.mpu = mpu
        self.has_moe_params = any(map(is_expert, parameters))
        self._expert_group, self._each_reduces_its_part = expert_group, each_reduces_its_part

    def in_gradients(self, parameters, has_experts):
        found = self.in_local_gradients(parameters)
        flag = torch.tensor([float(found)], device=_device_of(parameters))
        if has_experts:
            self._agree(flag, self._expert_group())
        if self._each_reduces_its_part:
            self._agree(flag, None)
        elif self.mpu is not None:
            self._agree(flag, self.mpu.get_model_parallel_group())
        return bool(flag.item())

    @staticmethod
    def in_local_gradients(parameters):
        return any(bool(has_overflow(parameter.grad)) for parameter in parameters if parameter.grad is not None)

    def in_norms(self, norms, on_all_ranks):
        flag = torch.tensor([float(any(norm == INFINITE or not torch.isfinite(torch.as_tensor(norm)).all()
                                       for norm in norms))], device=_device_of(self.params))
        if self.has_moe_params:
            self._agree(flag, self._expert_group())
        if on_all_ranks and dist.is_initialized():
            self._agree(flag, None)
        return bool(flag.item())

    @staticmethod
    def _agree(flag, group):
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)


def _device_of(parameters):
    return parameters[0].device if parameters else "cpu"
