"""Ranks from the environment of an MPI launcher, and the size of a collective's message."""

import inspect
import os

import torch

from deepspeed.utils.comms_logging import get_caller_func  # noqa: F401


def _from_launcher(what, names):
    for name in names:
        if name in os.environ:
            return int(os.environ[name])
    return 1 if what == "world size" else 0


def get_local_rank_from_launcher():
    return _from_launcher("local rank", ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"))


def get_world_rank_from_launcher():
    return _from_launcher("rank", ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK"))


def get_world_size_from_launcher():
    return _from_launcher("world size", ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"))


def get_default_args(func):
    return {name: parameter.default for name, parameter in inspect.signature(func).parameters.items()
            if parameter.default is not inspect.Parameter.empty}


def get_msg_size_from_args(func, *args, **kwargs):
    """Bytes of the tensors that this rank contributes: those of the argument whose name says so."""
    try:
        given = inspect.signature(func).bind(*args, **kwargs).arguments
    except TypeError:
        return 0
    for name in ("tensor", "tensors", "input_tensor", "input_list", "input_tensors", "input_tensor_list",
                 "scatter_list", "output", "output_tensor"):
        if name in given and given[name] is not None:
            return _bytes(given[name])
    return 0


def _bytes(value):
    if torch.is_tensor(value):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


def get_debug_log_name(func_args, debug):
    name = func_args["log_name"]
    return f"{name} | [Caller Func: {func_args['debug']}]" if debug else name
