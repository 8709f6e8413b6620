"""Starting a program's ranks, on this machine or on many."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
