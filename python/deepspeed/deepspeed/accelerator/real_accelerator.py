"""Which accelerator this process uses: CUDA where torch sees a device, else the CPU; DS_ACCELERATOR names another."""

import os

import torch

_KNOWN = ("cuda", "cpu")
_accelerator = None


def _choose():
    name = os.environ.get("DS_ACCELERATOR")
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("DS_ACCELERATOR is cuda, but torch sees no CUDA device on this machine; "
                             "unset it, or set it to cpu")
        from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator
        return CUDA_Accelerator()
    if name == "cpu":
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
        return CPU_Accelerator()
    raise ValueError(f"DS_ACCELERATOR is {name!r}; Tessera supports {' and '.join(_KNOWN)}")


def get_accelerator():
    global _accelerator
    if _accelerator is None:
        _accelerator = _choose()
    return _accelerator


def set_accelerator(accel_obj):
    """Uses this object, a DeepSpeedAccelerator, from now on; returns it."""
    global _accelerator
    if accel_obj is None:
        raise ValueError("set_accelerator needs an accelerator object, not None")
    _accelerator = accel_obj
    return _accelerator


def is_current_accelerator_supported():
    return get_accelerator().device_name() in _KNOWN
