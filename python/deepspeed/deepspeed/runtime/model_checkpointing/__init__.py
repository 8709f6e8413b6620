"""How checkpoints are written: the ds_config's block checkpoint."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
