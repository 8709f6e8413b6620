"""Lists, tuples and dicts of tensors: find them, move them, compare them, measure them."""

import dataclasses

import torch


def map_tensors(value, change):
    """The same structure, with change(tensor) for each tensor; what is no tensor stays."""
    if torch.is_tensor(value):
        return change(value)
    if isinstance(value, (list, tuple)):
        items = [map_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return type(value)((key, map_tensors(item, change)) for key, item in value.items())
    return value


def cast_floats(value, dtype):
    """The same structure, floating tensors in `dtype`."""
    return map_tensors(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def tensors_in(value):
    """All tensors, depth first; those of dataclasses as well, as models return them."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def bytes_of(value):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(value))


def same(first, second):
    """Equal structures with equal tensors."""
    if torch.is_tensor(first):
        return torch.is_tensor(second) and torch.equal(first.to(second.device), second)
    if type(first) is not type(second):
        return False
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return first == second
