"""Makes Accelerate, and the Trainer on it, count ranks that have no GPU.

Accelerate takes the backend of torch.distributed from the accelerator that it finds; under DeepSpeed without one it has none, and
each rank goes on as if it were alone. Here it gets gloo. Imported by `deepspeed`, and, in the ranks of a launcher, at Python's
start (tessera_cpu_ranks.pth), as Accelerate decides before it imports deepspeed.
"""

import importlib.abc
import importlib.machinery
import os
import sys

_MODULE = "accelerate.state"


def _counts_as_rank():
    return int(os.environ.get("LOCAL_RANK", "-1")) >= 0 and os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"


def _is_here():
    """Whether `deepspeed` is Tessera's."""
    try:
        import deepspeed
    except ImportError:
        return False
    return deepspeed.__version__.endswith("+tessera")


def _give_backend(state):
    """`state`: the module accelerate.state."""
    found_by_accelerate = state.PartialState._prepare_backend

    def _prepare_backend(self, cpu=False, *more, **named):
        backend, kind = found_by_accelerate(self, cpu, *more, **named)
        if backend is None and not cpu and _counts_as_rank() and _is_here():
            backend = "gloo"
        return backend, kind

    state.PartialState._prepare_backend = _prepare_backend


class _Watch(importlib.abc.MetaPathFinder):
    """Acts once the module has been imported."""

    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_give(module):
                run(module)
                _give_backend(module)

            spec.loader.exec_module = run_and_give
        return spec


if _MODULE in sys.modules:
    _give_backend(sys.modules[_MODULE])
else:
    sys.meta_path.insert(0, _Watch())
