"""The factor that keeps small fp16 gradients from vanishing, with the attributes of DeepSpeed's class: its checkpoints hold
the object. The rule is the C++ engine's (tessera/optim/loss_scaler.h).
"""

import torch  # noqa: F401  its libraries come before ours

from tessera import _core


class StaticScale:
    """Never changes."""

    dynamic = False

    def __init__(self, cur_scale):
        self.cur_scale = cur_scale
        self.dynamic = type(self).dynamic

    @property
    def loss_scale(self):
        return self.cur_scale

    def update_scale(self, overflow):
        pass


class DynamicScale(StaticScale):
    dynamic = True

    def __init__(self, init_scale, scale_window, min_scale, delayed_shift, consecutive_hysteresis,
                 raise_error_at_min_scale):
        super().__init__(init_scale)
        self.cur_iter = 0
        self.last_overflow_iter = -1
        self.scale_factor = 2.0
        self.scale_window, self.min_scale = scale_window, min_scale
        self.delayed_shift = self.cur_hysteresis = delayed_shift
        self.consecutive_hysteresis = consecutive_hysteresis
        self.raise_error_at_min_scale = raise_error_at_min_scale

    def update_scale(self, overflow):
        scaler = _core.LossScaler(
            state={"scale": self.cur_scale, "steps": self.cur_iter, "last_overflow": self.last_overflow_iter,
                   "hysteresis": self.cur_hysteresis},
            factor=self.scale_factor, window=self.scale_window, min=self.min_scale, hysteresis=self.delayed_shift,
            consecutive_hysteresis=self.consecutive_hysteresis)
        if overflow and self.raise_error_at_min_scale and scaler.at_the_end:
            raise Exception(f"the gradients overflow, and the loss scale is already at minimum, {self.min_scale}: "
                            "training diverges in fp16; use bf16, a lower learning rate, or a lower fp16.min_loss_scale")
        scaler.update(bool(overflow))
        state = scaler.state
        self.cur_scale, self.cur_iter = state["scale"], state["steps"]
        self.last_overflow_iter, self.cur_hysteresis = state["last_overflow"], state["hysteresis"]
