"""At Python's start where clients run on DeepSpeed itself: their packages come behind DeepSpeed's own environment, and Accelerate
counts ranks without a GPU, which under DeepSpeed it does not (tessera.cpu_ranks does it for Tessera).
"""

import importlib.abc
import importlib.machinery
import os
import site
import sys

site.addsitedir(os.environ["CLIENT_PACKAGES"])


class _Counts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "accelerate.state":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module

        def run_and_change(module):
            run(module)
            found = module.PartialState._prepare_backend

            def prepare(self, cpu=False, *more, **named):
                backend, kind = found(self, cpu, *more, **named)
                asks = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
                return (backend or ("gloo" if asks and not cpu else None)), kind

            module.PartialState._prepare_backend = prepare

        spec.loader.exec_module = run_and_change
        return spec


sys.meta_path.insert(0, _Counts())
