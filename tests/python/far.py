"""The far device (tests/support/far_device.h) for programs, or TESSERA_TEST_DEVICE's. Loaded before the first backward, as torch counts devices then."""

import ctypes
import os
import types

import torch
import torch.distributed as dist
from ranks import BUILD

_MODULE = BUILD / "tests" / "libtessera_far_device_module.so"


def device():
    """This rank's, of an initialized group."""
    if "TESSERA_TEST_DEVICE" in os.environ:
        return torch.device(os.environ["TESSERA_TEST_DEVICE"], dist.get_rank() % torch.cuda.device_count())
    torch.ops.load_library(_MODULE)
    module = types.ModuleType("torch.far")  # what torch asks of a kind of device
    module._lazy_init = lambda: None
    module.is_available = lambda: False  # for graphs
    torch._register_device_module("far", module)
    return torch.device("far", 0)


def bytes_in_use():
    """On it."""
    if "TESSERA_TEST_DEVICE" in os.environ:
        return torch.cuda.memory_allocated()
    return _count("_ZN7tessera4test16far_bytes_in_useEv")


def pinned_bytes():
    """Of the host's memory, for its copies."""
    if "TESSERA_TEST_DEVICE" in os.environ:
        return torch.cuda.host_memory_stats()["allocated_bytes.current"]
    return _count("_ZN7tessera4test16far_pinned_bytesEv")


def _count(name):
    count = ctypes.CDLL(str(_MODULE))[name]
    count.restype = ctypes.c_size_t
    return count()
