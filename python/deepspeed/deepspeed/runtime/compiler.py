"""torch.compile: whether it is available, and whether we are inside it."""

import contextlib
import functools

import torch

from deepspeed import _names

_names.serve(__name__)


def is_compile_supported():
    return hasattr(torch.compiler, "is_compiling") and hasattr(torch.nn.Module, "compile")


def is_compiling():
    return torch.compiler.is_compiling()


def disable(func):
    """The function, left alone by torch.compile."""
    return torch.compiler.disable(func)


def lazy_disable(func):
    """As disable, but torch.compile is touched at the first call only."""
    disabled = None

    @functools.wraps(func)
    def left_alone(*args, **kwargs):
        nonlocal disabled
        disabled = disabled or torch.compiler.disable(func)
        return disabled(*args, **kwargs)

    return left_alone


def dummy_decorator(func):
    return func


def enable(min_version=None):
    """A decorator that compiles its function where torch is new enough, and leaves it as it is elsewhere."""
    from deepspeed.utils.torch import required_torch_version
    if min_version is not None and not required_torch_version(min_version=min_version):
        return dummy_decorator
    return torch.compile


def compile():
    return torch.compile


@contextlib.contextmanager
def compiled_autograd(enabled, kwargs):
    if not enabled:
        yield
        return
    with torch._dynamo.compiled_autograd._enable(torch.compile(**kwargs)):
        yield
