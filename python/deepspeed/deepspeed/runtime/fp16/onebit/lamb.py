"""The class OnebitLamb, which DeepSpeed had up to 0.19.6. It sends a bit an element: see tessera.optimizers.OneBitLamb."""

from tessera import optimizers


class OnebitLamb(optimizers.OneBitLamb):
    """As in DeepSpeed 0.19.6: OnebitLamb(model.parameters(), lr=…, …), given to initialize()."""
