"""The ds_config's block zero_optimization."""

import logging
import sys
from enum import Enum
from typing import Optional

from pydantic import Field, model_validator

from deepspeed.runtime.config_utils import DeepSpeedConfigModel, pp_int
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
    OffloadDeviceEnum,
)

logger = logging.getLogger("DeepSpeed")

ZERO_OPTIMIZATION = "zero_optimization"


class ZeroStageEnum(int, Enum):
    """What is sharded over the data-parallel ranks; each stage shards what the one before it does, too."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


def _replaced_by(new_param, **how):
    return {"deprecated": True, "new_param": new_param, **how}


class DeepSpeedZeroConfig(DeepSpeedConfigModel):
    """Sizes are in elements. Fields with an alias take either name."""

    stage: ZeroStageEnum = 0

    # Gradients
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = Field(pp_int(5e8), gt=0)
    use_multi_rank_bucket_allreduce: bool = True
    overlap_comm: Optional[bool] = None  # None: at stage 3 only
    compute_grad_norm: bool = True
    round_robin_gradients: bool = False
    ignore_unused_parameters: bool = True

    # Parameters after a step, stages 1 and 2
    allgather_partitions: bool = True
    allgather_bucket_size: int = Field(pp_int(5e8), ge=0)
    parameter_alignment: bool = False

    # Offload
    offload_param: Optional[DeepSpeedZeroOffloadParamConfig] = None
    offload_optimizer: Optional[DeepSpeedZeroOffloadOptimizerConfig] = None
    zenflow: Optional[ZenFlowConfig] = None
    cpu_offload_param: Optional[bool] = Field(None, json_schema_extra=_replaced_by(
        "offload_param", new_param_fn=lambda on: DeepSpeedZeroOffloadParamConfig(device="cpu") if on else None))
    cpu_offload: Optional[bool] = Field(None, json_schema_extra=_replaced_by(
        "offload_optimizer", new_param_fn=lambda on: DeepSpeedZeroOffloadOptimizerConfig(device="cpu") if on else None))
    cpu_offload_use_pin_memory: Optional[bool] = Field(None, json_schema_extra=_replaced_by(
        "offload_param or offload_optimizer", set_new_param=False))

    # Stage 3
    sub_group_size: int = Field(pp_int(1e9), ge=0)
    prefetch_bucket_size: int = Field(pp_int(5e7), ge=0, alias="stage3_prefetch_bucket_size")
    param_persistence_threshold: int = Field(pp_int(1e5), ge=0, alias="stage3_param_persistence_threshold")
    model_persistence_threshold: int = Field(pp_int(sys.maxsize, "sys.maxsize"), ge=0,
                                             alias="stage3_model_persistence_threshold")
    max_live_parameters: int = Field(pp_int(1e9), ge=0, alias="stage3_max_live_parameters")
    max_reuse_distance: int = Field(pp_int(1e9), ge=0, alias="stage3_max_reuse_distance")
    gather_16bit_weights_on_model_save: bool = Field(False, alias="stage3_gather_16bit_weights_on_model_save")
    stage3_gather_fp16_weights_on_model_save: bool = Field(False, json_schema_extra=_replaced_by(
        "gather_16bit_weights_on_model_save"))
    module_granularity_threshold: int = Field(pp_int(0), alias="stage3_module_granularity_threshold")
    use_all_reduce_for_fetch_params: bool = Field(False, alias="stage3_use_all_reduce_for_fetch_params")
    allgather_sequential: bool = Field(False, alias="stage3_allgather_sequential")
    memory_efficient_linear: bool = True
    override_module_apply: bool = True
    leaf_module: DeepSpeedZeroLeafModuleConfig = Field(default_factory=DeepSpeedZeroLeafModuleConfig)

    # ZeRO++
    zero_hpz_partition_size: int = Field(1, ge=0)
    zero_quantized_weights: bool = False
    zero_quantized_nontrainable_weights: bool = False
    zero_quantized_gradients: bool = False

    # Checkpoints
    load_from_fp32_weights: bool = True
    elastic_checkpoint: bool = False
    pipeline_loading_checkpoint: bool = False
    save_muon_momentum_buffer_in_memory: bool = False

    legacy_stage1: bool = False
    log_trace_cache_warnings: bool = False
    enable_sanity_checks: bool = False

    @model_validator(mode="after")
    def overlap_comm_valid(self):
        if self.overlap_comm is None:
            self.overlap_comm = self.stage == ZeroStageEnum.weights
        return self

    @model_validator(mode="after")
    def compute_grad_norm_valid(self):
        if not self.compute_grad_norm and self.stage not in (ZeroStageEnum.optimizer_states, ZeroStageEnum.gradients):
            raise ValueError(f"compute_grad_norm is false with stage {self.stage}; only stages 1 and 2 can do without it")
        return self

    @model_validator(mode="after")
    def offload_ratio_check(self):
        offload = self.offload_optimizer
        if offload is not None and offload.ratio < 1.0:
            assert self.stage == ZeroStageEnum.weights, \
                f"offload_optimizer.ratio is {offload.ratio} with stage {self.stage}; a ratio below 1 needs stage 3"
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
    block = {"stage": 1 if param_dict[ZERO_OPTIMIZATION] else 0}
    if block["stage"] and "allgather_size" in param_dict:
        block["allgather_bucket_size"] = param_dict["allgather_size"]
    return block
