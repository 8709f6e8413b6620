"""The ds_config's block tensor_parallel."""

from enum import Enum
from typing import Any, Dict, Literal, Optional

import torch
from pydantic import Field

from deepspeed.runtime.config_utils import DeepSpeedConfigModel


class AUTOTP_MODE(Enum):
    TRAINING = "TRAINING"
    INFERENCE = "INFERENCE"


class TPConfig(DeepSpeedConfigModel):
    tp_size: int = 1
    tp_grain_size: int = 1
    mpu: object = None
    tp_group: object = None


class TPTrainingConfig(DeepSpeedConfigModel):
    """autotp_size 0 is off."""

    dtype: torch.dtype = torch.float16
    autotp_size: int = 0
    tp_overlap_comm: bool = False
    vocab_parallel_lm_head: Optional[bool] = None
    vocab_parallel_ce_backend: Literal["torch", "liger"] = "torch"
    tensor_parallel: TPConfig = Field(default_factory=TPConfig, alias="tp")
    injection_policy_tuple: Optional[tuple] = None
    partition_config: Optional[Dict[str, Any]] = None
    preset_model: Optional[str] = None
    keep_module_on_host: bool = False
    replace_with_kernel_inject: bool = Field(False, alias="kernel_inject")


def get_tensor_parallel_config(ds_config):
    return TPTrainingConfig(**ds_config.get("tensor_parallel", {}))
