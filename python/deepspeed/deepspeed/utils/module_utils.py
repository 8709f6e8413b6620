"""Submodules by their dotted name."""

import functools


def recursive_getattr(model, module_name):
    return functools.reduce(getattr, module_name.split("."), model)


def recursive_setattr(model, module_name, module):
    *outer, last = module_name.split(".")
    setattr(functools.reduce(getattr, outer, model), last, module)
