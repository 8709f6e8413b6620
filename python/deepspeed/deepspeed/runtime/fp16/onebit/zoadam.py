"""The class ZeroOneAdam, which DeepSpeed had up to 0.19.6. It sends a bit an element: see tessera.optimizers.ZeroOneAdam."""

from tessera import optimizers


class ZeroOneAdam(optimizers.ZeroOneAdam):
    """As in DeepSpeed 0.19.6: ZeroOneAdam(model.parameters(), lr=…, …), given to initialize()."""
