"""Classes, defaults, constants and readers of the ds_config, made from the C++ engine's table of keys
(tessera/config/ds_keys.cpp), and the engine's word on keys that do not go together."""

import sys
from typing import Annotated, Any, List, Literal, Optional, Union

from pydantic import BeforeValidator, Field, create_model

from deepspeed.runtime.config_utils import DeepSpeedConfigModel, pp_int
from tessera import _core
from tessera.config_keys import rows

# A single name may stand without a list around it.
Names = Annotated[List[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


def _no_boolean(value):
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")
    return value


def row_of(path):
    return next(row for row in rows() if row["path"] == path)


def rows_in(block):
    """(key, row) of the keys directly in a block; "": at the top. Those that DeepSpeed removed are left out."""
    for row in rows():
        outer, _, key = row["path"].rpartition(".")
        if outer == block and row["status"] != "removed":
            yield key, row


def removed_keys():
    """(path, what to do instead) of each key that is refused whatever its value."""
    return [(row["path"], row["instead"]) for row in rows() if row["status"] == "removed"]


def default_of(path):
    return row_of(path)["default"]


def choices_of(path):
    return row_of(path)["choices"]


def reader_of(path):
    """A function that takes a ds_config and returns the value of the key, or its default."""
    default = default_of(path)
    *outer, key = path.split(".")

    def read(param_dict):
        for block in outer:
            param_dict = param_dict.get(block, {})
        return param_dict.get(key, default)

    read.__doc__ = f"The value of '{path}', or {default!r}."
    return read


def together(error, **blocks):
    """A ds_config of these blocks, as the engine reads it; raises `error` where it finds a contradiction in them."""
    try:
        return _core.Config({"train_batch_size": 1, **blocks}, place="the ds_config", data_parallel_size=1)
    except _core.ConfigError as problem:
        raise error(str(problem)) from None


def defaults_of(block):
    """Of the keys in a block and in blocks inside of it."""
    return {key: defaults_of(row["path"]) if row["type"] == "block" else row["default"]
            for key, row in rows_in(block) if row["status"] not in ("alias", "deprecated")}


def constants(prefix, block, keys):
    """DeepSpeed's names of keys: {prefix + KEY: key, …}, and what each is when it is not given: {prefix + KEY_DEFAULT: …}."""
    found = {}
    for key in keys.split():
        name = prefix + key.removeprefix(f"{block}_").upper()
        found[name] = key
        found[f"{name}_DEFAULT"] = default_of(f"{block}.{key}" if block else key)
    return found


def fields_of(block):
    """A model with the keys of a block that are no blocks themselves, for a class to inherit from: types, ranges, defaults, and
    second names. A subclass may say a field otherwise."""
    rows = dict(rows_in(block))
    second = {row["instead"]: key for key, row in rows.items() if row["status"] == "alias"}
    fields = {}
    for key, row in rows.items():
        own = row["path"] not in second
        if row["type"] == "block" or row["status"] == "alias":
            continue
        if row["status"] != "deprecated":
            fields[key if own else second[row["path"]]] = _field(row, {} if own else {"alias": key})
        elif row["instead"].rpartition(".")[0] == block and rows[row["instead"].rpartition(".")[2]]["type"] != "block":
            fields[key] = _field(row, {"json_schema_extra": {
                "deprecated": True, "new_param": second.get(row["instead"], row["instead"].rpartition(".")[2])}})
    return create_model(f"Fields of {block}", __base__=DeepSpeedConfigModel, **fields)


def _field(row, more):
    kind, default = _type_of(row), row["default"]
    if isinstance(default, int) and default >= 100_000:  # of the size of a model or a buffer
        default = pp_int(default, "sys.maxsize" if default == sys.maxsize else None)
    return Optional[kind] if default is None else kind, Field(default, **more)


def _type_of(row):
    number = int if row["type"].startswith("int") else float
    bounds = {name: number(value) for name, value in row["bounds"].items()}
    numbers = Annotated[number, BeforeValidator(_no_boolean), Field(**bounds, **({"allow_inf_nan": False} if number is float else {}))]
    choices = Literal[tuple(row["choices"])] if row["choices"] else None
    return {"bool": bool, "int": numbers, "number": numbers, "text": str, "texts": Names, "choice": choices,
            "int or choice": Union[choices, numbers]}.get(row["type"], Any)
