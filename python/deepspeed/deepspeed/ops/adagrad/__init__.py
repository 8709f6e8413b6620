"""Adagrad."""

from tessera.optimizers import DeepSpeedCPUAdagrad  # noqa: F401
