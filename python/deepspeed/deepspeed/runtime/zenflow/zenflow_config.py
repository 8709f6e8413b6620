"""The ds_config's block zero_optimization.zenflow."""

from typing import Optional, Union

from pydantic import Field, model_validator

from deepspeed.runtime.config_utils import DeepSpeedConfigModel

_STRATEGIES = ("auto", "step", "epoch")


class ZenFlowConfig(DeepSpeedConfigModel):
    topk_ratio: float = Field(0.1, gt=0.0, lt=1.0)
    select_strategy: str = "auto"
    select_interval: Union[str, int] = "auto"
    update_interval: Union[str, int] = "auto"
    overlap_step: bool = False
    offload: bool = False
    auto_ratio: float = Field(0.99, ge=0.0, le=1.0)
    full_warm_up_rounds: int = 0
    pt_reserved_cores_perc: float = Field(0.5, ge=0.0, le=1.0)
    steps_per_epoch: Optional[int] = None

    @model_validator(mode="after")
    def _known_values(self):
        if self.select_strategy not in _STRATEGIES:
            raise ValueError(f"zenflow.select_strategy is {self.select_strategy!r}; use one of {_STRATEGIES}")
        for key in ("select_interval", "update_interval"):
            value = getattr(self, key)
            if value != "auto" and (isinstance(value, str) or value < 1):
                raise ValueError(f"zenflow.{key} is {value!r}; use \"auto\" or a whole number of at least 1")
        return self
