"""What an engine's backward() is given."""

import torch

from tessera import _core
from tessera.error_report import made

_WHERE = "Engine.backward"
_KNOWN = {"allreduce_gradients": True, "release_loss": False}  # keywords that DeepSpeed has or had, and what they are there by default


def require_loss(loss):
    if isinstance(loss, torch.Tensor):
        return
    kind = type(loss).__name__
    described = f"{kind} with the keys {', '.join(map(str, loss))}" if hasattr(loss, "keys") else kind
    raise made(TypeError, f"backward() takes the loss, a tensor of one element, and got {described}", _WHERE,
               "pass the loss that the model has computed, as outputs.loss or outputs[\"loss\"]")


def refuse_keywords(given):
    for name, value in given.items():
        if name not in _KNOWN:
            raise TypeError(f"backward() got an unexpected keyword argument '{name}'")
        if value != _KNOWN[name]:
            raise made(_core.UsageError, f"backward() was given {name}={value!r}: not supported", _WHERE,
                       "leave it out; gradients add up without being reduced inside no_sync()"
                       if name == "allreduce_gradients" else "leave it out")
