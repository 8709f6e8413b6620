"""FusedAdam."""

from tessera.optimizers import FusedAdam  # noqa: F401
