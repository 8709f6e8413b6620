"""ZenFlow's configuration; the ZenFlow optimizers are not in Tessera."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
