"""LAMB."""

from tessera.optimizers import FusedLamb  # noqa: F401
