"""Names inside checkpoint files, and copies of tensors for saving."""

from deepspeed._lazy import borrowed_attributes, lazy_attributes

_submodule = lazy_attributes(__name__)
_borrowed = borrowed_attributes(__name__, "deepspeed.checkpoint.constants", "deepspeed.checkpoint.utils")


def __getattr__(name):
    try:
        return _borrowed(name)
    except AttributeError:
        return _submodule(name)
