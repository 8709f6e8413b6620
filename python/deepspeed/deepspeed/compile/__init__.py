"""torch.compile's configuration."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
