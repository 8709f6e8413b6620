"""Marks around functions in a profiler's trace."""

import functools

from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.compiler import is_compiling

enable_nvtx = True
DEEPSPEED_NVTX_DOMAIN = "DeepSpeed"


def _range_push(accelerator, msg):
    if getattr(accelerator, "supports_nvtx_domain", False):
        accelerator.range_push(msg, domain=DEEPSPEED_NVTX_DOMAIN)
    else:
        accelerator.range_push(msg)


def _range_pop(accelerator):
    if getattr(accelerator, "supports_nvtx_domain", False):
        accelerator.range_pop(domain=DEEPSPEED_NVTX_DOMAIN)
    else:
        accelerator.range_pop()


def instrument_w_nvtx(func):
    """The function, with its name as a range in the trace; inside torch.compile as it is."""

    @functools.wraps(func)
    def instrumented(*args, **kwargs):
        if not enable_nvtx or is_compiling():
            return func(*args, **kwargs)
        accelerator = get_accelerator()
        _range_push(accelerator, func.__qualname__)
        try:
            return func(*args, **kwargs)
        finally:
            _range_pop(accelerator)

    return instrumented
