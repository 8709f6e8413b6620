"""DeepSpeedZeroOptimizer."""

from deepspeed.runtime.optimizer_classes import DeepSpeedZeroOptimizer  # noqa: F401
