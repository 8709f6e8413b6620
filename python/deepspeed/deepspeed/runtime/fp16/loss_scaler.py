"""Loss scalers: the factor on an fp16 loss, fixed or adapted to overflows."""

import torch

from deepspeed import _names
from deepspeed.runtime.config_utils import DeepSpeedConfigObject
from deepspeed.runtime.precision_config import (  # noqa: F401
    CONSECUTIVE_HYSTERESIS,
    DELAYED_SHIFT,
    INITIAL_LOSS_SCALE,
    MIN_LOSS_SCALE,
    SCALE_WINDOW,
)
from tessera.loss_scale import DynamicScale, StaticScale

_names.serve(__name__)


def to_python_float(t):
    return float(t)


class LossScalerBase(StaticScale, DeepSpeedConfigObject):
    """What both scalers offer."""

    def scale_loss(self, loss):
        return loss * self.loss_scale

    def scale_gradient(self, module, grad_in, grad_out):
        """For a module's backward hook."""
        return tuple(None if grad is None else grad * self.loss_scale for grad in grad_in)

    def backward(self, loss, retain_graph=False):
        self.scale_loss(loss).backward(retain_graph=retain_graph)


class LossScaler(LossScalerBase):
    """A fixed scale; overflows are not looked for."""

    def __init__(self, scale=1):
        super().__init__(scale)

    def has_overflow(self, params):
        return False

    @staticmethod
    def _has_inf_or_nan(x):
        return False


class DynamicLossScaler(DynamicScale, LossScalerBase):
    """As large a scale as does not overflow: see tessera/loss_scale.py."""

    def __init__(self, init_scale, scale_window, min_scale, delayed_shift, consecutive_hysteresis,
                 raise_error_at_min_scale=True, dtype=torch.half):
        super().__init__(init_scale, scale_window, min_scale, delayed_shift, consecutive_hysteresis,
                         raise_error_at_min_scale)
        self.dtype = dtype

    def has_overflow_serial(self, params):
        return any(self._has_inf_or_nan(param.grad) for param in params if param.grad is not None)

    has_overflow = has_overflow_serial

    @staticmethod
    def _has_inf_or_nan(x):
        return not torch.isfinite(x).all()


def CreateLossScaler(dtype, static_loss_scale, dynamic_scaling, dynamic_loss_args):
    """The scaler for a dtype: only fp16 has one other than 1."""
    if dtype != torch.half:
        return LossScaler(scale=1.0)
    if not dynamic_scaling:
        return LossScaler(scale=static_loss_scale)
    assert dynamic_loss_args is not None, \
        "a dynamic loss scale needs dynamic_loss_args, as returned by DeepSpeedFP16Config.dynamic_loss_scale_args()"
    return DynamicLossScaler(dtype=dtype, **dynamic_loss_args)
