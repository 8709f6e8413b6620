"""The ds_config's blocks, as DeepSpeed shows them: one class or function a block. Keys, types, ranges and defaults are made
from the engine's table of keys; here stands what the table does not say. The block zero_optimization has a file of its own.
"""

from enum import Enum
from typing import List, Literal, Optional

import torch
from pydantic import Field, model_validator

from deepspeed._key_table import default_of, defaults_of, fields_of, rows_in, together
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config_utils import DeepSpeedConfigModel, DeepSpeedConfigObject
from deepspeed.runtime.constants import CHECKPOINT_TAG_VALIDATION_MODES

FP16, BFLOAT16, BFLOAT16_OLD = "fp16", "bf16", "bfloat16"
ACT_CHKPT = "activation_checkpointing"
FLOPS_PROFILER = "flops_profiler"
COMMS_LOGGER = "comms_logger"
AIO = "aio"
TIMERS, TIMERS_THROUGHPUT = "timers", "throughput"


# Precision

# Keys of DeepSpeedFP16Config.dynamic_loss_scale_args(), which the loss scaler takes.
INITIAL_LOSS_SCALE = "init_scale"
SCALE_WINDOW = "scale_window"
DELAYED_SHIFT = "delayed_shift"
CONSECUTIVE_HYSTERESIS = "consecutive_hysteresis"
MIN_LOSS_SCALE = "min_scale"


class DeepSpeedFP16Config(fields_of(FP16)):
    @model_validator(mode="after")
    def _validate_dynamic_loss_scale_params(self):
        self._resolved()
        return self

    def _resolved(self):
        return together(ValueError, fp16={key: getattr(self, key) for key, _ in rows_in(FP16)})

    def initial_dynamic_scale(self):
        return int(self._resolved().initial_loss_scale)

    def dynamic_loss_scale_args(self):
        return {
            INITIAL_LOSS_SCALE: self.initial_dynamic_scale(),
            SCALE_WINDOW: self.loss_scale_window,
            DELAYED_SHIFT: self.hysteresis,
            CONSECUTIVE_HYSTERESIS: self.consecutive_hysteresis,
            MIN_LOSS_SCALE: self.min_loss_scale,
        }


class DeepSpeedBF16Config(fields_of(BFLOAT16)):
    pass


def get_float16_config(param_dict):
    return DeepSpeedFP16Config(**param_dict.get(FP16, {}))


def get_bfloat16_config(param_dict):
    return DeepSpeedBF16Config(**param_dict.get(BFLOAT16, param_dict.get(BFLOAT16_OLD, {})))


# What is logged

class TensorBoardConfig(fields_of("tensorboard")):
    pass


class CSVConfig(fields_of("csv_monitor")):
    pass


class WandbConfig(fields_of("wandb")):
    pass


class CometConfig(fields_of("comet")):
    pass


class DeepSpeedMonitorConfig(DeepSpeedConfigModel):
    tensorboard: TensorBoardConfig = Field(default_factory=TensorBoardConfig)
    comet: CometConfig = Field(default_factory=CometConfig)
    wandb: WandbConfig = Field(default_factory=WandbConfig)
    csv_monitor: CSVConfig = Field(default_factory=CSVConfig)

    @property
    def enabled(self):
        return any(block.enabled for block in (self.tensorboard, self.comet, self.wandb, self.csv_monitor))


def get_monitor_config(param_dict):
    return DeepSpeedMonitorConfig(**{key: param_dict[key] for key in DeepSpeedMonitorConfig.model_fields
                                     if key in param_dict})


class CommsLoggerConfig(fields_of(COMMS_LOGGER)):
    pass


class DeepSpeedCommsConfig:
    """`comms_logger` is there only where the ds_config has the block."""

    def __init__(self, ds_config):
        self.comms_logger_enabled = COMMS_LOGGER in ds_config
        if self.comms_logger_enabled:
            self.comms_logger = CommsLoggerConfig(**ds_config[COMMS_LOGGER])


class DeepSpeedThroughputTimerConfig(fields_of("timers.throughput")):
    """`synchronized`: the device is waited for before the clock is read."""


def get_timers_config(param_dict):
    return DeepSpeedThroughputTimerConfig(**param_dict.get(TIMERS, {}).get(TIMERS_THROUGHPUT, {}))


class _Unchecked(DeepSpeedConfigObject):
    """One attribute a key."""

    block = None

    def __init__(self, param_dict):
        given = param_dict.get(self.block, {})
        for key, default in defaults_of(self.block).items():
            setattr(self, key, given.get(key, default))


class DeepSpeedFlopsProfilerConfig(_Unchecked):
    block = FLOPS_PROFILER


# Memory and files

class DeepSpeedActivationCheckpointingConfig(_Unchecked):
    block = ACT_CHKPT


ACT_CHKPT_DEFAULT = defaults_of(ACT_CHKPT)
globals().update({f"ACT_CHKPT_{key.upper()}": key for key in ACT_CHKPT_DEFAULT})

AIO_DEFAULT_DICT = defaults_of(AIO)


def get_aio_config(param_dict):
    config = {**AIO_DEFAULT_DICT, **{key: value for key, value in (param_dict.get(AIO) or {}).items() if key in AIO_DEFAULT_DICT}}
    if config["use_gds"]:
        assert get_accelerator().device_name() == "cuda", \
            "aio.use_gds is true, but GPUDirect storage needs a CUDA device; set it to false"
    return config


_WRITER_DEFAULTS = {"type": "FAST", "io_buffer_size": 64 * 1024 * 1024, "io_buffer_double": True,
                    "show_statistics": False, "data_parallel": None, "decoupled": False, "io_multiplier": 1}

VALID_VALUES = {
    "tag_validation": CHECKPOINT_TAG_VALIDATION_MODES,
    "type": ["MOCK", "PYTHON", "FAST"],
    "data_parallel": ["REPLICA", "SOCKET", "MACHINE"],
}


def get_checkpoint_config(param_dict):
    given = param_dict.get("checkpoint", {})
    values = {key: given.get(key, default_of(f"checkpoint.{key}")) for key in ("tag_validation", "checkpoint_serialization")}
    values["tag_validation"] = _upper(values["tag_validation"])
    return _checked("checkpoint", {**values, "writer": get_checkpoint_writer_config(given)})


def get_checkpoint_writer_config(param_dict):
    given = param_dict.get("writer")
    if given is None:
        return None
    writer = {key: given.get(key, default) for key, default in _WRITER_DEFAULTS.items()}
    writer["type"] = _upper(writer["type"])
    writer["data_parallel"] = _upper(writer["data_parallel"])
    return _checked("checkpoint.writer", writer)


def _upper(value):
    return value.upper() if isinstance(value, str) else value


def _checked(block, values):
    for key, valid in VALID_VALUES.items():
        value = values.get(key)
        assert value is None or value in valid, f"{block}.{key} is {value!r}; use one of {', '.join(valid)}"
    return values


# How the model runs

class CompileConfig(fields_of("compile")):
    passes: Optional[List[Literal["z1", "z3", "autosp", "autotp"]]] = None


class AUTOTP_MODE(Enum):
    TRAINING = "TRAINING"
    INFERENCE = "INFERENCE"


class TPConfig(fields_of("tensor_parallel.tp")):
    pass


class TPTrainingConfig(fields_of("tensor_parallel")):
    """autotp_size 0 is off."""

    dtype: torch.dtype = getattr(torch, default_of("tensor_parallel.dtype"))
    tensor_parallel: TPConfig = Field(default_factory=TPConfig, alias="tp")


def get_tensor_parallel_config(ds_config):
    return TPTrainingConfig(**ds_config.get("tensor_parallel", {}))


class HybridEngineConfig(fields_of("hybrid_engine")):
    pass


def get_hybrid_engine_config(param_dict):
    return HybridEngineConfig(**param_dict.get("hybrid_engine", {}))
