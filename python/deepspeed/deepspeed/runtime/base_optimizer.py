"""What the optimizers that initialize() returns are instances of."""


class DeepSpeedOptimizer:
    pass


class ZeROOptimizer(DeepSpeedOptimizer):
    """An optimizer whose state is sharded over the data-parallel ranks."""
