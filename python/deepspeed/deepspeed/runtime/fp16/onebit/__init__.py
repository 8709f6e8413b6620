"""The 1-bit optimizers by the names that DeepSpeed had up to 0.19.6. They send a bit an element: see tessera.optimizers."""

from deepspeed import _names
from tessera import optimizers

_names.serve(__name__)


class OnebitAdam(optimizers.OneBitAdam):
    """As in DeepSpeed 0.19.6: OnebitAdam(model.parameters(), lr=…, …), given to initialize()."""


class OnebitLamb(optimizers.OneBitLamb):
    """As in DeepSpeed 0.19.6: OnebitLamb(model.parameters(), lr=…, …), given to initialize()."""
