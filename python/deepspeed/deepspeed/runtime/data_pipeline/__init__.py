"""The ds_config's block data_efficiency."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
