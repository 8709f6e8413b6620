"""Steps of an optimizer over parameters that an engine trains. The gradients are with the engine, so such a step would
change nothing; it is an error instead. An optimizer over other parameters is free.
"""

from torch.optim.optimizer import register_optimizer_step_pre_hook

from tessera import _core, zero
from tessera.error_report import made

_watching = False


def watch():
    """From now on, for the whole process: torch has one list of hooks for all optimizers."""
    global _watching
    if not _watching:
        register_optimizer_step_pre_hook(_before_step)
        _watching = True


def _before_step(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if _is_trained_by_an_engine(parameter):
                raise made(_core.UsageError,
                           f"{type(optimizer).__name__}.step() would change nothing: an engine trains these parameters and "
                           "has their gradients", "",
                           "call engine.step(); to train with this optimizer give it to initialize: optimizer=…")


def _is_trained_by_an_engine(parameter):
    step = getattr(parameter, "tessera_part_of", None)  # see TorchStep
    if step is not None:
        return step() is not None and not step().is_running
    return zero.trained_by(parameter)[0] is not None
