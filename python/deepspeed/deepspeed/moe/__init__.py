"""Mixtures of experts: how their parameters are grouped. The layer itself is not in Tessera."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
