"""All tensors in what a module's forward takes or returns."""

import dataclasses

import torch


def tensors_in(value, into=None):
    """Those of nested lists, tuples, dicts (a model output of transformers is one) and dataclasses, as a list."""
    into = [] if into is None else into
    if isinstance(value, torch.Tensor):
        into.append(value)
    elif isinstance(value, (list, tuple)):
        for each in value:
            tensors_in(each, into)
    elif isinstance(value, dict):
        for each in value.values():
            tensors_in(each, into)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            tensors_in(getattr(value, field.name), into)
    return into


def cast_floats(value, dtype):
    """The same, with every floating tensor in `dtype`; other containers than list, tuple and dict are left alone."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(cast_floats(each, dtype) for each in value))
    if type(value) in (list, tuple):
        return type(value)(cast_floats(each, dtype) for each in value)
    if type(value) is dict:
        return {key: cast_floats(each, dtype) for key, each in value.items()}
    return value
