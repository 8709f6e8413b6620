"""BF16_Optimizer."""

from deepspeed.runtime.optimizer_classes import BF16_Optimizer  # noqa: F401
