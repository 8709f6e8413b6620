"""What an engine's backward() is given."""

import torch

from tessera import _core
from tessera.error_report import made

_WHERE = "Engine.backward"
_KNOWN = {"allreduce_gradients": True, "release_loss": False}  # keywords that DeepSpeed has or had, and what they are there by default


def require_loss(loss):
    if isinstance(loss, torch.Tensor):
        return
    raise made(TypeError, f"backward() takes the loss, a tensor of one element, and got {described_as(loss)}", _WHERE,
               "pass the loss that the model has computed, as outputs.loss or outputs[\"loss\"]")


def described_as(value):
    """In a few words: "dict with the keys logits, loss"."""
    kind = type(value).__name__
    return f"{kind} with the keys {', '.join(map(str, value))}" if hasattr(value, "keys") else kind


def refuse_keywords(given):
    for name, value in given.items():
        if name not in _KNOWN:
            raise TypeError(f"backward() got an unexpected keyword argument '{name}'")
        if value != _KNOWN[name]:
            raise made(_core.UsageError, f"backward() was given {name}={value!r}: not supported", _WHERE,
                       "leave it out; gradients add up without being reduced inside no_sync()"
                       if name == "allreduce_gradients" else "leave it out")
