"""Moving tensors to NVMe: the configuration of asynchronous I/O."""

from deepspeed._lazy import lazy_attributes

MIN_SWAPPABLE_BYTES = 1024 * 1024

__getattr__ = lazy_attributes(__name__)
