"""Says, once, that torch's functions to clip gradients find none of an engine's: they change nothing, where DeepSpeed's stage 0
would clip, and torch's own clip_grad_value_ fails. Imported by `deepspeed`; acts on torch once that is there.
"""

import functools
import logging
import sys

from tessera.when_imported import when_imported

logger = logging.getLogger("tessera")
CLIPS = ("clip_grad_norm_", "clip_grad_value_")

_said = False


def _left_by_engines(name, parameters):
    """Those whose gradients no engine has."""
    global _said
    zero = sys.modules.get("tessera.zero")  # without it there is no engine
    if zero is None:
        return parameters
    left = [parameter for parameter in parameters if parameter.grad is not None or zero.trained_by(parameter)[0] is None]
    if len(left) < len(parameters) and not _said:
        _said = True
        logger.warning("%s clips nothing here: the engine has the gradients of these parameters; set gradient_clipping in the configuration",
                       name)
    return left


def _watched(clip):
    @functools.wraps(clip)
    def call(parameters, *args, **named):
        given = [parameters] if hasattr(parameters, "grad") else list(parameters)
        left = _left_by_engines(clip.__name__, given)
        return None if given and not left and clip.__name__ == "clip_grad_value_" else clip(left, *args, **named)

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
