"""FP16_UnfusedOptimizer."""

from deepspeed.runtime.optimizer_classes import FP16_UnfusedOptimizer  # noqa: F401
