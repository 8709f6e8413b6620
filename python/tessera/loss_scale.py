"""The factor that keeps small fp16 gradients from vanishing, with the attributes of DeepSpeed's class: its checkpoints hold
the object. The rule is the C++ engine's (tessera/optim/loss_scaler.h).
"""

import torch  # noqa: F401  its libraries come before ours

from tessera import _core

# The C++ scaler's state, and DeepSpeed's attributes of it.
STATE = {"scale": "cur_scale", "steps": "cur_iter", "last_overflow": "last_overflow_iter", "hysteresis": "cur_hysteresis"}


# What decides of it, in the block fp16.
SETTINGS = ("loss_scale_window", "min_loss_scale", "hysteresis", "consecutive_hysteresis")


def dynamic_scale_as_kept(kept, settings):
    """In the state that a checkpoint's engine kept; `settings` of the block fp16."""
    shown = DynamicScale(kept["scale"], settings["loss_scale_window"], settings["min_loss_scale"],
                         max(settings["hysteresis"], kept["hysteresis"]), settings["consecutive_hysteresis"],
                         raise_error_at_min_scale=True)
    shown.show(kept)
    return shown


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
        self.scale_window, self.min_scale, self.delayed_shift = scale_window, min_scale, delayed_shift
        self.consecutive_hysteresis = consecutive_hysteresis
        self.raise_error_at_min_scale = raise_error_at_min_scale
        scaler = self._scaler()
        self.scale_factor = scaler.factor
        self.show(scaler.state)

    def _scaler(self, **more):
        return _core.LossScaler(initial=self.cur_scale, window=self.scale_window, min=self.min_scale,
                                hysteresis=self.delayed_shift, consecutive_hysteresis=self.consecutive_hysteresis, **more)

    def show(self, state):
        vars(self).update((attribute, state[name]) for name, attribute in STATE.items())

    def update_scale(self, overflow):
        scaler = self._scaler(factor=self.scale_factor,
                              state={name: getattr(self, attribute) for name, attribute in STATE.items()})
        if overflow and self.raise_error_at_min_scale and scaler.at_the_end:
            raise Exception(f"the gradients overflow, and the loss scale is already at minimum, {self.min_scale}: "
                            "training diverges in fp16; use bf16, a lower learning rate, or a lower fp16.min_loss_scale")
        scaler.update(bool(overflow))
        self.show(scaler.state)
