"""The class OnebitAdam, which DeepSpeed had up to 0.19.6. It sends a bit an element: see tessera.optimizers.OneBitAdam."""

from tessera import optimizers


class OnebitAdam(optimizers.OneBitAdam):
    """As in DeepSpeed 0.19.6: OnebitAdam(model.parameters(), lr=…, …), given to initialize()."""
