"""Says, once, that torch's functions to clip gradients find none of an engine's: they change nothing, where DeepSpeed's stage 0
would clip. Imported by `deepspeed`; acts on torch once that is there.
"""

import functools
import logging
import sys

from tessera.when_imported import when_imported

logger = logging.getLogger("tessera")
CLIPS = ("clip_grad_norm_", "clip_grad_value_")

_said = False


def _say_if_they_are_an_engines(name, parameters):
    global _said
    zero = sys.modules.get("tessera.zero")  # without it there is no engine
    if _said or zero is None:
        return
    if any(parameter.grad is None and zero.trained_by(parameter)[0] is not None for parameter in parameters):
        _said = True
        logger.warning("%s clips nothing here: the engine has the gradients of these parameters; set gradient_clipping in the configuration",
                       name)


def _watched(clip):
    @functools.wraps(clip)
    def call(parameters, *args, **named):
        parameters = [parameters] if hasattr(parameters, "grad") else list(parameters)
        _say_if_they_are_an_engines(clip.__name__, parameters)
        return clip(parameters, *args, **named)

    return call


def _watch(clip_grad):
    """`clip_grad`: the module torch.nn.utils.clip_grad."""
    taken_from_it = sys.modules.get("torch.nn.utils")
    for name in CLIPS:
        watched = _watched(getattr(clip_grad, name))
        for module in (clip_grad, taken_from_it):
            if hasattr(module, name):
                setattr(module, name, watched)


when_imported("torch.nn.utils.clip_grad", _watch)
