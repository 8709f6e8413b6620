"""The ds_config's block zero_optimization."""

import logging
from enum import Enum
from pathlib import Path
from typing import Optional

from pydantic import Field, model_validator

from deepspeed._key_table import Names, choices_of, default_of, fields_of, together
from tessera import leaf_modules

logger = logging.getLogger("DeepSpeed")

ZERO_OPTIMIZATION = "zero_optimization"


class ZeroStageEnum(int, Enum):
    """What is sharded over the data-parallel ranks; each stage shards what the one before it does, too."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


OffloadDeviceEnum = Enum("OffloadDeviceEnum", {name: name for name in choices_of("zero_optimization.offload_param.device")},
                         type=str, module=__name__)


class OffloadStateTypeEnum(str, Enum):
    """What engine.offload_states() can move away."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


class DeepSpeedZeroOffloadParamConfig(fields_of("zero_optimization.offload_param")):
    """Sizes are in elements."""

    device: OffloadDeviceEnum = default_of("zero_optimization.offload_param.device")
    nvme_path: Optional[Path] = None


class DeepSpeedZeroOffloadOptimizerConfig(fields_of("zero_optimization.offload_optimizer")):
    """`ratio` is the share of parameters that is updated on the host (stage 3)."""

    device: OffloadDeviceEnum = default_of("zero_optimization.offload_optimizer.device")
    nvme_path: Optional[Path] = None

    @property
    def pipeline(self):
        return self.pipeline_read or self.pipeline_write


class ZenFlowConfig(fields_of("zero_optimization.zenflow")):
    pass


DEFAULT_LEAF_MODULE_CLASSES = list(leaf_modules.DEFAULT_CLASSES)
DEFAULT_LEAF_MODULE_NAMES = default_of("zero_optimization.leaf_module.names")
DEFAULT_LEAF_MODULE_NAME_SUFFIXES = default_of("zero_optimization.leaf_module.name_suffixes")


class DeepSpeedZeroLeafModuleConfig(fields_of("zero_optimization.leaf_module")):
    classes: Names = Field(default_factory=lambda: list(DEFAULT_LEAF_MODULE_CLASSES))


def _replaced_by(new_param, **how):
    return {"deprecated": True, "new_param": new_param, **how}


class DeepSpeedZeroConfig(fields_of(ZERO_OPTIMIZATION)):
    """Sizes are in elements. Fields with an alias take either name."""

    stage: ZeroStageEnum = default_of("zero_optimization.stage")
    offload_param: Optional[DeepSpeedZeroOffloadParamConfig] = None
    offload_optimizer: Optional[DeepSpeedZeroOffloadOptimizerConfig] = None
    zenflow: Optional[ZenFlowConfig] = None
    cpu_offload_param: Optional[bool] = Field(None, json_schema_extra=_replaced_by(
        "offload_param", new_param_fn=lambda on: DeepSpeedZeroOffloadParamConfig(device="cpu") if on else None))
    cpu_offload: Optional[bool] = Field(None, json_schema_extra=_replaced_by(
        "offload_optimizer", new_param_fn=lambda on: DeepSpeedZeroOffloadOptimizerConfig(device="cpu") if on else None))
    cpu_offload_use_pin_memory: Optional[bool] = Field(None, json_schema_extra=_replaced_by(
        "offload_param or offload_optimizer", set_new_param=False))
    leaf_module: DeepSpeedZeroLeafModuleConfig = Field(default_factory=DeepSpeedZeroLeafModuleConfig)

    @model_validator(mode="after")
    def overlap_comm_valid(self):
        if self.overlap_comm is None:  # then at stage 3 only
            self.overlap_comm = self.stage == ZeroStageEnum.weights
        return self

    @model_validator(mode="after")
    def compute_grad_norm_valid(self):
        if not self.compute_grad_norm and self.stage not in (ZeroStageEnum.optimizer_states, ZeroStageEnum.gradients):
            raise ValueError(f"compute_grad_norm is false with stage {self.stage}; only stages 1 and 2 can do without it")
        return self

    @model_validator(mode="after")
    def offload_ratio_check(self):
        if self.offload_optimizer is not None:
            together(AssertionError, zero_optimization={
                "stage": self.stage, "offload_optimizer": {"ratio": self.offload_optimizer.ratio}})
        return self

    @model_validator(mode="after")
    def elastic_checkpoint_deprecated(self):
        if self.elastic_checkpoint and self.stage == ZeroStageEnum.weights:
            logger.warning("zero_optimization.elastic_checkpoint has no effect at stage 3: remove it")
        return self


def get_zero_config(param_dict):
    block = param_dict.get(ZERO_OPTIMIZATION, {})
    if isinstance(block, bool):
        block = read_zero_config_deprecated(param_dict)
    return DeepSpeedZeroConfig(**block)


def read_zero_config_deprecated(param_dict):
    """The block that `"zero_optimization": true` means."""
    logger.warning('"zero_optimization": true is deprecated; write "zero_optimization": {"stage": 1}')
    block = {"stage": together(ValueError, zero_optimization=param_dict[ZERO_OPTIMIZATION]).stage}
    if block["stage"] and "allgather_size" in param_dict:
        block["allgather_bucket_size"] = param_dict["allgather_size"]
    return block
