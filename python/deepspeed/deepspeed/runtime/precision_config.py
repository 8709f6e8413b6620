"""The ds_config's blocks fp16 and bf16."""

import math

from pydantic import field_validator, model_validator

from deepspeed.runtime.config_utils import DeepSpeedConfigModel

FP16 = "fp16"
BFLOAT16 = "bf16"
BFLOAT16_OLD = "bfloat16"

# Keys of DeepSpeedFP16Config.dynamic_loss_scale_args(), which the loss scaler takes.
INITIAL_LOSS_SCALE = "init_scale"
SCALE_WINDOW = "scale_window"
DELAYED_SHIFT = "delayed_shift"
CONSECUTIVE_HYSTERESIS = "consecutive_hysteresis"
MIN_LOSS_SCALE = "min_scale"


class DeepSpeedFP16Config(DeepSpeedConfigModel):
    """loss_scale 0 is dynamic: it starts at 2**initial_scale_power, halves when `hysteresis` steps overflow, and
    doubles after loss_scale_window steps without one."""

    enabled: bool = False
    auto_cast: bool = False
    loss_scale: float = 0
    initial_scale_power: int = 16
    loss_scale_window: int = 1000
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    min_loss_scale: int = 1
    fp16_master_weights_and_grads: bool = False

    @field_validator("loss_scale", mode="before")
    @classmethod
    def _loss_scale_is_a_finite_number(cls, value):
        if isinstance(value, bool):
            raise ValueError("fp16.loss_scale must be a number, not a boolean; use 0 for a dynamic scale")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"fp16.loss_scale must be a number, not {value!r}; use 0 for a dynamic scale") from None
        if not math.isfinite(number) or number < 0:
            raise ValueError(f"fp16.loss_scale is {value}; use 0 for a dynamic scale, or a positive number")
        return number

    @field_validator("loss_scale_window", "min_loss_scale", mode="before")
    @classmethod
    def _whole_number(cls, value, info):
        if isinstance(value, bool) or value is None:
            raise ValueError(f"fp16.{info.field_name} must be a whole number, not {value!r}")
        return value

    @model_validator(mode="after")
    def _validate_dynamic_loss_scale_params(self):
        if self.enabled and self.loss_scale == 0:
            for key in ("loss_scale_window", "min_loss_scale"):
                if getattr(self, key) <= 0:
                    raise ValueError(f"fp16.{key} is {getattr(self, key)}; a dynamic loss scale needs a value above 0")
        return self

    def initial_dynamic_scale(self):
        return 2 ** self.initial_scale_power

    def dynamic_loss_scale_args(self):
        return {
            INITIAL_LOSS_SCALE: self.initial_dynamic_scale(),
            SCALE_WINDOW: self.loss_scale_window,
            DELAYED_SHIFT: self.hysteresis,
            CONSECUTIVE_HYSTERESIS: self.consecutive_hysteresis,
            MIN_LOSS_SCALE: self.min_loss_scale,
        }


class DeepSpeedBF16Config(DeepSpeedConfigModel):
    enabled: bool = False
    immediate_grad_update: bool = False
    check_grad_overflow: bool = True
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False


def get_float16_config(param_dict):
    return DeepSpeedFP16Config(**param_dict.get(FP16, {}))


def get_bfloat16_config(param_dict):
    return DeepSpeedBF16Config(**param_dict.get(BFLOAT16, param_dict.get(BFLOAT16_OLD, {})))
