"""Names inside checkpoint files, and copies of tensors for saving."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
