"""The engine's table of keys of a ds_config (tessera/config/ds_keys.cpp), for Python's classes: what they take and what that
is when it is not given stands there alone.
"""

import functools
import inspect
import re

import torch  # noqa: F401  its libraries come before ours

from tessera import _core
from tessera.error_report import made


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


def as_read(name, block, place, speaks, **beside):
    """A block "optimizer" or "scheduler" with the values that the engine reads where texts stand: numbers in quotes, "auto". `beside`: the blocks
    that these depend on. `speaks`: whether this rank says what was read as what."""
    params = block.get("params") or {}
    if not any(isinstance(value, str) for value in params.values()):
        return block
    read = _core.Config({"train_micro_batch_size_per_gpu": 1, **beside, name: block}, place=place, data_parallel_size=1)
    values = {key: read.values.get(f"{name}.params.{key}", given) for key, given in params.items()}
    if speaks:
        autos = [f"{place}: '{name}.params.{key}' is \"auto\", read as {values[key]}"
                 for key, given in params.items() if given == "auto" and values[key] != given]
        for warning in [each for each in read.warnings if f"'{name}.params." in each] + autos:
            _core.log_warning(warning)
    return {**block, "params": values}


def call_with_params(function, name, type_name, *arguments, **params):
    """function(*arguments, **params), where `params` are those of a block "optimizer" or "scheduler"; its own error for a parameter too many or too
    few."""
    try:
        return function(*arguments, **params)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        missing = re.search(r"missing \d+ required positional arguments?: (.*)", str(error))
        if not unknown and not missing:
            raise
        known = list(params_of(name, type_name))
        if unknown:
            key = unknown[1]
            fix = f"use one of {', '.join(known)}" if known else f"see the documentation of {type_name}"
            raise made(_core.ConfigError, f"'{name}.params.{key}' is no parameter of {type_name}", "the configuration", fix) from error
        raise made(_core.ConfigError, f"'{name}.params' of {type_name} lacks {missing[1]}", "the configuration", f"add it to '{name}.params'") from error
