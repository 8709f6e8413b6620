"""Parts of a training run: configuration, data, schedules, precision, and the engine's Python face."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
