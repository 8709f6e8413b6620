"""zero.Init, zero.GatheredParameters and their kin. The three names at the end are DeepSpeed's private ones: transformers
reads and replaces them whenever it builds a model under zero.Init."""

import inspect

import torch

from deepspeed.accelerator import get_accelerator  # noqa: F401
from deepspeed import comm as dist
from tessera import zero
from tessera.zero import (GatheredParameters, ZeroParamStatus, ZeroParamType,  # noqa: F401
                          register_external_parameter, unregister_external_parameter)
from tessera.zero import is_partitioned as is_zero_param  # noqa: F401


class Init(zero.Init):
    """Makes torch.distributed's default group first, if nobody has."""

    def __init__(self, *args, enabled=True, **kwargs):
        if enabled and not dist.is_initialized():
            dist.init_distributed()
        super().__init__(*args, enabled=enabled, **kwargs)


_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn, target_fp_dtype):
    """`fn` makes its floating tensors in `target_fp_dtype`."""

    def wrapped(*args, **kwargs):
        tensor = fn(*args, **kwargs)
        return tensor.to(target_fp_dtype) if tensor.is_floating_point() else tensor

    return wrapped


partitioned_param_data_shape = [0]


class MultipleAllGatherHandles:
    """Waits for several handles, each with the keywords that its wait() takes."""

    def __init__(self, handles):
        self.handles = handles

    def wait(self, **keywords):
        for handle in self.handles:
            taken = inspect.signature(handle.wait).parameters
            takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
            handle.wait(**{name: value for name, value in keywords.items() if takes_all or name in taken})
