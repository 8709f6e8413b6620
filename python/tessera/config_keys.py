"""The engine's table of keys of a ds_config (tessera/config/ds_keys.cpp), for Python's classes: what they take and what that
is when it is not given stands there alone.
"""

import functools
import inspect

import torch  # noqa: F401  its libraries come before ours

from tessera import _core


@functools.cache
def rows():
    return _core.config_keys()


def defaults_in(block):
    """{key: default} of a block's own keys."""
    found = (row["path"].rpartition(".") + (row["default"],) for row in rows())
    return {key: default for outer, _, key, default in found if outer == block}


def params_of(block, type_name):
    """{key: row} of the params of an optimizer or a schedule of this type."""
    prefix = f"{block}.params."
    return {row["path"].removeprefix(prefix): row for row in rows()
            if row["path"].startswith(prefix) and type_name in row["when"]}


def with_defaults_of(block, type_name, **key_of):
    """For a function: parameters with the names of keys get the keys' defaults, where theirs is `...` or none. `key_of`: the
    keys of parameters that have other names."""
    keys = params_of(block, type_name)

    def fill(function):
        defaults = []
        for name, parameter in inspect.signature(function).parameters.items():
            row = keys.get(key_of.get(name, name))
            if parameter.default not in (inspect.Parameter.empty, ...):
                defaults.append(parameter.default)
            elif row is not None and not row["required"]:
                defaults.append(tuple(row["default"]) if isinstance(row["default"], list) else row["default"])
        function.__defaults__ = tuple(defaults)
        return function

    return fill
