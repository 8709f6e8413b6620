"""FP16_Optimizer."""

from deepspeed.runtime.optimizer_classes import FP16_Optimizer  # noqa: F401
