"""Which of DeepSpeed's classes the optimizer that initialize() returns is an instance of. They differ in name only."""

import torch

from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
from tessera.zero_optimizer import ZeroOptimizer


class DeepSpeedOptimizer:
    pass


class ZeROOptimizer(DeepSpeedOptimizer):
    """An optimizer whose state is sharded over the data-parallel ranks."""


class DeepSpeedZeroOptimizer(ZeroOptimizer, ZeROOptimizer):
    """Stages 1 and 2."""


class DeepSpeedZeroOptimizer_Stage3(ZeroOptimizer, ZeROOptimizer):
    """Stage 3."""

    def __init__(self, engine, optimizer):
        super().__init__(engine, optimizer)
        self.parameter_offload = DeepSpeedZeRoOffload(engine)


class FP16_Optimizer(ZeroOptimizer, DeepSpeedOptimizer):
    """Stage 0 in 16 bits, with one of Tessera's own optimizers."""


class FP16_UnfusedOptimizer(ZeroOptimizer, DeepSpeedOptimizer):
    """Stage 0 in 16 bits, with another optimizer."""


class BF16_Optimizer(ZeroOptimizer, ZeROOptimizer):
    """Stage 1 in bf16 with gradients that add up in fp32."""


def class_for(stage, model_dtype, grad_dtype, fused):
    """None: the optimizer itself, unwrapped."""
    if stage == 3:
        return DeepSpeedZeroOptimizer_Stage3
    if stage == 1 and model_dtype == torch.bfloat16 and grad_dtype == torch.float32:
        return BF16_Optimizer
    if stage:
        return DeepSpeedZeroOptimizer
    if model_dtype == torch.float32:
        return None
    return FP16_Optimizer if fused else FP16_UnfusedOptimizer
