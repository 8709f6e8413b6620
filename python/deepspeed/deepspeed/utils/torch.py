"""The torch version, and hooks on a parameter's gradient."""

import torch
from packaging import version as pkg_version


def required_torch_version(min_version=None, max_version=None):
    """True when torch's version lies between the two (inclusive; numbers or text, at least one of them)."""
    if min_version is None and max_version is None:
        raise ValueError("required_torch_version needs min_version, max_version or both")
    have = pkg_version.parse(torch.__version__)
    if min_version is not None and have < pkg_version.parse(str(min_version)):
        return False
    return max_version is None or have <= pkg_version.parse(str(max_version))


def register_grad_hook(param, hook):
    """Calls hook(param) once param.grad is complete in a backward pass; returns a removable handle."""
    return param.register_post_accumulate_grad_hook(hook)


def is_functorch_transforming():
    return torch._C._functorch.peek_interpreter_stack() is not None


def jit_script_compat(fn):
    return torch.jit.script(fn)
