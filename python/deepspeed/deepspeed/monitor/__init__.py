"""Where a run's numbers are written: TensorBoard, CSV, Weights & Biases, Comet."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__)
