"""Attributes by dotted names, which DeepSpeed-Chat takes from here. Compression itself is not in Tessera."""

from deepspeed import _names

_names.serve(__name__)


def recursive_getattr(model, module_name):
    for name in module_name.split("."):
        model = getattr(model, name)
    return model


def recursive_setattr(model, module_name, module):
    path, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, path) if path else model, name, module)
