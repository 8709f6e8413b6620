"""DeepSpeedZeroOptimizer_Stage3."""

from deepspeed.runtime.optimizer_classes import DeepSpeedZeroOptimizer_Stage3  # noqa: F401
