"""DeepSpeedCPUAdam."""

from tessera.optimizers import DeepSpeedCPUAdam  # noqa: F401
