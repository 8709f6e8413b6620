"""What a program wants kept in a checkpoint besides the model: values as JSON, tensors as tensors, and no code.

    text, tensors = encode(values, "client_state")      the tensors go to the CPU
    values = decode(text, tensors)

JSON holds None, booleans, numbers, texts, lists and dicts with texts as keys; what else there is becomes {"$": KIND, …} with
plain values: see _KINDS. An object of any other class is refused when it is saved, with the name of its key: to write it takes
pickle, and to read that runs what the file's author put there. trust_pickle=True at both ends allows it.
"""

import argparse
import base64
import collections
import datetime
import enum
import functools
import importlib
import io
import json
import logging
import pathlib
import pickle
import sys
import types

import torch

from tessera import _core
from tessera.error_report import made

logger = logging.getLogger("tessera")

_DEEPEST = 100  # levels of lists and dicts
_TRUST = "if you trust who wrote the file, pass trust_pickle=True to load_checkpoint or set 'tessera.trust_pickle' in the ds_config"


def encode(values, name, trust_pickle=False):
    """(JSON text, {name: tensor}). UsageError names the key of a value that can be neither."""
    tensors = {}
    tree = _Encoder(tensors, trust_pickle).plain(values, name, 0)
    return json.dumps(tree), tensors


def decode(text, tensors, trust_pickle=False):
    """What encode() was given. DataError where the text is not what it wrote, or holds pickles that are not trusted."""
    try:
        return json.loads(text, object_hook=lambda found: _value(found, tensors, trust_pickle))
    except _core.Error:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise made(_core.DataError, f"the program's values cannot be read: {type(error).__name__}: {error}", "the checkpoint",
                   "use an earlier checkpoint") from None


def decode_old(saved, trust_pickle=False):
    """What earlier versions wrote with torch.save. Where that takes code from the file, only if it is trusted."""
    try:
        return torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not trust_pickle:
            raise made(_core.DataError, f"the checkpoint holds objects that run code when they are read ({_first_line(error)})",
                       "an earlier version's checkpoint", _TRUST) from None
    logger.warning("objects of an earlier version's checkpoint are read with pickle, which runs whatever code the file holds")
    return torch.load(io.BytesIO(saved), map_location="cpu", weights_only=False)


def _first_line(error):
    return str(error).splitlines()[0].split(". ")[0]


class _Encoder:
    def __init__(self, tensors, trust_pickle):
        self._tensors, self._trusts = tensors, trust_pickle

    def plain(self, value, key, depth):
        if depth > _DEEPEST:
            raise made(_core.UsageError, f"{key[:80]}… is nested deeper than {_DEEPEST} levels, or contains itself", "save_checkpoint",
                       "save plain values")
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) is list:
            return [self.plain(item, f"{key}[{number}]", depth + 1) for number, item in enumerate(value)]
        if type(value) is dict and "$" not in value and all(type(name) is str for name in value):
            return {name: self.plain(item, f"{key}.{name}", depth + 1) for name, item in value.items()}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, key)
        kind = _kind_of(value)
        parts = None if kind is None else _KINDS[kind].parts(value)
        if parts is not None:
            return {"$": kind, "of": self.plain(parts, key, depth + 1)}
        for base in (int, float, str, dict, list, tuple):
            if kind is None and isinstance(value, base):
                logger.info("%s is a %s: the checkpoint keeps it as a %s", key, type(value).__name__, base.__name__)
                return self.plain(str.__str__(value) if base is str else base(value), key, depth + 1)
        return self._pickled(value, key)

    def _tensor(self, value, key):
        name = key.encode("ascii", "backslashreplace").decode()
        while name in self._tensors:
            name += "'"
        try:
            self._tensors[name] = value.detach().to("cpu").contiguous()
        except (RuntimeError, NotImplementedError) as error:
            raise made(_core.UsageError, f"{key} is a tensor that cannot be saved: {_first_line(error)}", "save_checkpoint",
                       "save a dense tensor") from None
        return {"$": "tensor", "of": name}

    def _pickled(self, value, key):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if not self._trusts:
            raise made(_core.UsageError, f"{key} is a {name}: a checkpoint holds plain values and tensors, no objects", "save_checkpoint",
                       "save what it consists of, or pass trust_pickle=True here and to load_checkpoint")
        try:
            return {"$": "pickle", "class": name, "of": base64.b64encode(pickle.dumps(value)).decode()}
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise made(_core.UsageError, f"{key} cannot be pickled: {_first_line(error)}", "save_checkpoint", "leave it out") from None


def _value(found, tensors, trusts):
    """A JSON object as what it stands for; those inside are so already."""
    kind = found.get("$")
    if kind is None:
        return found
    if kind == "tensor":
        return tensors[found["of"]]
    if kind == "pickle":
        if not trusts:
            raise made(_core.DataError, f"the checkpoint holds an object of {found['class']} that runs code when it is read",
                       "the program's values", _TRUST)
        return pickle.loads(base64.b64decode(found["of"]))
    return _KINDS[kind].made_of(found["of"])


class _Kind:
    """A class, by its name so that it need not be installed; its plain parts (None: this object has no such), and an object of them."""

    def __init__(self, name, parts, made_of):
        self.name, self.parts, self.made_of = name, parts, made_of


def _class(name):
    module, _, qualified = name.partition(":")
    return functools.reduce(getattr, qualified.split("."), importlib.import_module(module))


def _kind_of(value):
    if isinstance(value, pathlib.PurePath):
        return "path"
    if isinstance(value, enum.Enum) and not isinstance(value, (int, float, str)):
        return "enum"
    name = f"{type(value).__module__}:{type(value).__qualname__}"
    if name.startswith("numpy:") and type(value).__name__ != "ndarray" and hasattr(value, "dtype"):
        return "number"
    return next((kind for kind, known in _KINDS.items() if known.name == name), None)


def _parts_of_default_dict(value):
    name = "None" if value.default_factory is None else value.default_factory.__name__
    return [name, dict(value)] if value.default_factory is _FACTORIES.get(name) else None


def _parts_of_array(value):
    if value.dtype.hasobject:
        return None
    return [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]


def _array(parts):
    dtype, shape, text = parts
    numpy = importlib.import_module("numpy")
    return numpy.frombuffer(base64.b64decode(text), dtype=numpy.dtype(dtype)).reshape(shape).copy()


def _torch_name(parts):
    """torch.float32 and the like; nothing else of torch."""
    found = getattr(torch, parts)
    if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        raise ValueError(f"torch.{parts} is no dtype")
    return found


def _parts_of_enum(value):
    return [type(value).__module__, type(value).__qualname__, value.name] if value.name is not None else None


def _member(parts):
    """Of an enumeration that the program has imported; else its name. Nothing is imported or called for what the file names."""
    module, qualified, name = parts
    found = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if isinstance(found, (type, types.ModuleType)) else None
    members = found.__members__ if isinstance(found, enum.EnumMeta) else {}
    return members.get(name, f"{qualified}.{name}")


_FACTORIES = {kind.__name__: kind for kind in (bool, int, float, str, list, dict, tuple, set)} | {"None": None}
_KINDS = {
    "dict": _Kind("builtins:dict", lambda value: [list(item) for item in value.items()], dict),
    "tuple": _Kind("builtins:tuple", list, tuple),
    "set": _Kind("builtins:set", list, set),
    "frozenset": _Kind("builtins:frozenset", list, frozenset),
    "complex": _Kind("builtins:complex", lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "range": _Kind("builtins:range", lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    "bytes": _Kind("builtins:bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "ordered_dict": _Kind("collections:OrderedDict", lambda value: [list(item) for item in value.items()], collections.OrderedDict),
    "counter": _Kind("collections:Counter", lambda value: [list(item) for item in value.items()],
                     lambda parts: collections.Counter(dict(parts))),
    "default_dict": _Kind("collections:defaultdict", _parts_of_default_dict,
                          lambda parts: collections.defaultdict(_FACTORIES[parts[0]], parts[1])),
    "deque": _Kind("collections:deque", lambda value: [list(value), value.maxlen], lambda parts: collections.deque(*parts)),
    "namespace": _Kind("argparse:Namespace", vars, lambda parts: argparse.Namespace(**parts)),
    "simple_namespace": _Kind("types:SimpleNamespace", vars, lambda parts: types.SimpleNamespace(**parts)),
    "enum": _Kind("enum:Enum", _parts_of_enum, _member),
    "path": _Kind("pathlib:PurePath", str, pathlib.Path),
    "datetime": _Kind("datetime:datetime", lambda value: value.isoformat(), datetime.datetime.fromisoformat),
    "timedelta": _Kind("datetime:timedelta", lambda value: [value.days, value.seconds, value.microseconds],
                       lambda parts: datetime.timedelta(*parts)),
    "size": _Kind("torch:Size", list, torch.Size),
    "dtype": _Kind("torch:dtype", lambda value: str(value).removeprefix("torch."), _torch_name),
    "device": _Kind("torch:device", str, torch.device),
    "array": _Kind("numpy:ndarray", _parts_of_array, _array),
    "number": _Kind("numpy:generic", _parts_of_array, lambda parts: _array(parts)[()]),
    # mmengine's message hub, which its DeepSpeed strategy passes
    "history_buffer": _Kind("mmengine.logging.history_buffer:HistoryBuffer", lambda value: [*value.data, value.max_length],
                            lambda parts: _class("mmengine.logging.history_buffer:HistoryBuffer")(*parts)),
}
