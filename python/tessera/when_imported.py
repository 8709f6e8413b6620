"""Acts on a module of a client once it is there, without importing it: at once where it is, or else after its import."""

import importlib.abc
import importlib.machinery
import sys


class _Watch(importlib.abc.MetaPathFinder):
    def __init__(self, name, act):
        self._name, self._act = name, act

    def find_spec(self, name, path, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_act(module):
                run(module)
                self._act(module)

            spec.loader.exec_module = run_and_act
        return spec


def when_imported(name, act):
    """`act`: a function of the module `name`, called once."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Watch(name, act))
