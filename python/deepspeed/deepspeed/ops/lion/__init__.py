"""Lion."""

from tessera.optimizers import DeepSpeedCPULion, FusedLion  # noqa: F401
