"""The factor that keeps small fp16 gradients from vanishing.

A dynamic scale after each step, with H the hysteresis and W the window:

  overflow    the hysteresis counts down; at 1, the scale halves, but never below its minimum
  no overflow after W steps without one the scale doubles, and the hysteresis is H again

With `consecutive_hysteresis` every good step refills the hysteresis. The attributes are those of DeepSpeed's class: its
checkpoints hold the object.
"""


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
        if overflow:
            self._lower()
            self.last_overflow_iter = self.cur_iter
        else:
            self._raise()
        self.cur_iter += 1

    def _lower(self):
        if self.delayed_shift != 1 and self.cur_hysteresis != 1:
            self.cur_hysteresis -= 1
            return
        if self.cur_scale == self.min_scale and self.raise_error_at_min_scale:
            raise Exception(f"the gradients overflow, and the loss scale is already at minimum, {self.min_scale}: "
                            "training diverges in fp16; use bf16, a lower learning rate, or a lower fp16.min_loss_scale")
        self.cur_scale = max(self.cur_scale / self.scale_factor, self.min_scale)

    def _raise(self):
        if self.consecutive_hysteresis:
            self.cur_hysteresis = self.delayed_shift
        stable = self.cur_iter - self.last_overflow_iter - 1
        if stable > 0 and stable % self.scale_window == 0:
            if not self.consecutive_hysteresis:
                self.cur_hysteresis = self.delayed_shift
            self.cur_scale *= self.scale_factor
