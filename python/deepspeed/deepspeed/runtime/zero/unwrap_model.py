"""unwrap_model_for_generation."""

import contextlib

from deepspeed.runtime.zero.partition_parameters import GatheredParameters


@contextlib.contextmanager
def unwrap_model_for_generation(model):
    """The engine's module with all its parameters whole and without hooks, to generate with. Collective."""
    with GatheredParameters(model.module.parameters()):
        if model.hooks is not None:
            model.hooks.remove()
        try:
            yield model.module
        finally:
            if model.hooks is not None:
                model.hooks.attach()
