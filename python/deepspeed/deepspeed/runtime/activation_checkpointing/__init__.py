"""Recomputing activations in the backward pass instead of keeping them."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
