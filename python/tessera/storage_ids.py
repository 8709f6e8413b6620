"""Lets libraries that save weights look at partitioned parameters.

Before they write, they ask each tensor where its storage is, to find weights that share one: also on ranks that write nothing, whose
state dict has placeholders. A placeholder answers such a question with an error, as there is nothing that could be read or written. To
these libraries it counts as a storage of its own instead. Importing this module does it.
"""

import functools

from tessera.when_imported import when_imported

_ASKED_BY = ("safetensors.torch", "huggingface_hub.serialization._torch", "transformers.pytorch_utils", "peft.utils.other")


def _has_values(tensor):
    return tensor.numel() > 0 or tensor.untyped_storage().nbytes() > 0


def _give_ids(module):
    """`module`: one of the above, each of which has a function storage_ptr, its own or another's."""
    ask = getattr(module, "storage_ptr", None)
    if ask is None:
        return

    @functools.wraps(ask)
    def storage_ptr(tensor):
        return ask(tensor) if _has_values(tensor) else id(tensor)

    module.storage_ptr = storage_ptr


for _name in _ASKED_BY:
    when_imported(_name, _give_ids)
