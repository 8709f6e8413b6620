"""The class OnebitAdam, for programs that import it: DeepSpeed 0.19.8 removed the optimizer, and Tessera has none."""

from deepspeed.runtime.fp16.onebit.removed import RemovedOptimizer


class OnebitAdam(RemovedOptimizer):
    pass
