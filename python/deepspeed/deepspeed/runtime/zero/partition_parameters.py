"""zero.Init, zero.GatheredParameters and their kin. The three names at the end are DeepSpeed's private ones: transformers
reads and replaces them whenever it builds a model under zero.Init."""

import torch

from deepspeed.accelerator import get_accelerator  # noqa: F401
from tessera.zero import (GatheredParameters, Init, ZeroParamStatus, ZeroParamType,  # noqa: F401
                          register_external_parameter, unregister_external_parameter)
from tessera.zero import is_partitioned as is_zero_param  # noqa: F401

_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn, target_fp_dtype):
    """`fn` makes its floating tensors in `target_fp_dtype`."""

    def wrapped(*args, **kwargs):
        tensor = fn(*args, **kwargs)
        return tensor.to(target_fp_dtype) if tensor.is_floating_point() else tensor

    return wrapped
