"""Adam."""

from tessera.optimizers import DeepSpeedCPUAdam, FusedAdam  # noqa: F401
