"""Names of a package that are loaded when someone first asks for them.

DeepSpeed imports all of itself at once, and programs rely on it: after `import deepspeed` they write
`deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES`. Here the same chain works, and loads only what it names.
"""

import importlib
import sys
from importlib.machinery import PathFinder

from deepspeed import _not_yet


def lazy_attributes(package, home_of=None, alias_of=None):
    """Makes the `__getattr__` of the package. `home_of`: name -> the module that defines it; `alias_of`: name -> the
    module that it stands for. The package's submodules need no entry."""
    home_of, alias_of = home_of or {}, alias_of or {}

    def load(name):
        if name in home_of:
            return getattr(importlib.import_module(home_of[name]), name)
        if name in alias_of:
            return importlib.import_module(alias_of[name])
        full_name = f"{package}.{name}"
        path = getattr(sys.modules[package], "__path__", None)
        if path and not name.startswith("__") and PathFinder.find_spec(full_name, path):
            return importlib.import_module(full_name)
        raise _not_yet.missing_attribute(package, name)

    def get_attribute(name):
        value = load(name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute


def borrowed_attributes(module, *others):
    """Makes the `__getattr__` of a module that shows the names of other modules as its own."""

    def get_attribute(name):
        if not name.startswith("__"):
            for other in others:
                names = vars(importlib.import_module(other))
                if name in names:
                    return names[name]
        raise _not_yet.missing_attribute(module, name)

    return get_attribute
