"""Reading the top-level keys of a ds_config that are no block of their own: one function a key."""

import json
from enum import Enum

import torch

from deepspeed import _key_table
from deepspeed._key_table import reader_of
from deepspeed.runtime import constants as key
from tessera import _core, kept_in_fp32


class DeepSpeedConfigError(_core.ConfigError):
    """A key that cannot be used, or a value that it cannot have. Its .what, .where and .fix: where Tessera found it."""


class DtypeEnum(Enum):
    """dtypes by any of the names that the keys of data_types take: DtypeEnum("half"), DtypeEnum("torch.float16") and
    DtypeEnum(torch.float16)."""

    fp16 = torch.float16
    fp32 = torch.float32
    int8 = torch.int8
    bf16 = torch.bfloat16

    @classmethod
    def _missing_(cls, name):
        if name not in _key_table.choices_of("data_types.param_dtype"):
            return None
        return cls.__members__.get(name) or cls(getattr(torch, name.removeprefix("torch.")))


def reject_removed_keys(param_dict):
    """DeepSpeedConfigError for keys that DeepSpeed 0.19.8 removed, whatever their value."""
    zero = param_dict.get("zero_optimization")
    blocks = {"": param_dict, "zero_optimization": zero if isinstance(zero, dict) else {}}
    for path, instead in _key_table.removed_keys():
        outer, _, name = path.rpartition(".")
        if name in blocks.get(outer, ()):
            raise DeepSpeedConfigError(f"DeepSpeed 0.19.8 removed the config key '{path}': {instead}")


# get_train_batch_size and so on.
globals().update({f"get_{path}": reader_of(path) for path in (
    key.TRAIN_BATCH_SIZE, key.TRAIN_MICRO_BATCH_SIZE_PER_GPU, key.GRADIENT_ACCUMULATION_STEPS,
    key.MANAGED_GRADIENT_ACCUMULATION, key.STEPS_PER_PRINT, key.DUMP_STATE, key.DISABLE_PYTHON_GC, key.DISABLE_ALLGATHER,
    key.PRESCALE_GRADIENTS, key.GRADIENT_PREDIVIDE_FACTOR, key.GRADIENT_CLIPPING, key.ZERO_ALLOW_UNTESTED_OPTIMIZER,
    key.ZERO_FORCE_DS_CPU_OPTIMIZER, key.WALL_CLOCK_BREAKDOWN, key.MEMORY_BREAKDOWN, key.DATALOADER_DROP_LAST,
    key.LOG_LEVEL)})
get_checkpoint_params = reader_of(key.CHECKPOINT)
get_data_types_params = reader_of(key.DATA_TYPES)
get_expert_data_topo_config = reader_of(key.USE_DATA_BEFORE_EXPERT_PARALLEL)
get_load_universal = reader_of("checkpoint.load_universal")
get_use_node_local_storage = reader_of("checkpoint.use_node_local_storage")
get_optimizer_name = reader_of("optimizer.type")
get_optimizer_legacy_fusion = reader_of("optimizer.legacy_fusion")
get_scheduler_name = reader_of("scheduler.type")
get_torch_autocast_enabled = reader_of("torch_autocast.enabled")


def get_communication_data_type(param_dict, comm_type=key.COMMUNICATION_DATA_TYPE, comm_data_type_default=None):
    """The dtype that gradients are reduced in, or None: the model's own."""
    value = param_dict.get(comm_type, comm_data_type_default)
    known = _key_table.choices_of(key.COMMUNICATION_DATA_TYPE)
    if value is None:
        return None
    if not isinstance(value, str) or value.lower() not in known:
        raise ValueError(f"Invalid {comm_type}: {value!r}; use one of {', '.join(known)}")
    return DtypeEnum(value.lower()).value


def get_gradient_allreduce_op(param_dict):
    value = param_dict.get(key.GRADIENT_ALLREDUCE_OP, key.GRADIENT_ALLREDUCE_OP_DEFAULT)
    name = value.lower() if isinstance(value, str) else value
    if name not in key.GRADIENT_ALLREDUCE_OP_SUPPORTED:
        raise ValueError(f"Invalid gradient_allreduce_op: {value!r}; use mean or sum")
    return name


# Optimizer and schedule

def get_optimizer_params(param_dict):
    return param_dict.get(key.OPTIMIZER, {}).get(key.OPTIMIZER_PARAMS) if get_optimizer_name(param_dict) else None


def get_optimizer_gradient_clipping(param_dict):
    return (get_optimizer_params(param_dict) or {}).get(key.MAX_GRAD_NORM)


def get_scheduler_params(param_dict):
    return param_dict.get(key.SCHEDULER, {}).get(key.SCHEDULER_PARAMS) if get_scheduler_name(param_dict) else None


# Precision

def get_torch_autocast_dtype(param_dict):
    name = param_dict.get(key.TORCH_AUTOCAST, {}).get(key.TORCH_AUTOCAST_DTYPE)
    return None if name is None else DtypeEnum(name).value


def get_lower_precision_safe_modules(param_dict):
    names = param_dict.get(key.TORCH_AUTOCAST, {}).get(key.TORCH_AUTOCAST_LOWER_PRECISION_SAFE_MODULES)
    if names is not None and not all(isinstance(name, str) for name in names):
        raise ValueError(f"torch_autocast.lower_precision_safe_modules is {names}; "
                         "list class names with their modules, such as \"torch.nn.modules.linear.Linear\"")
    return names


def get_keep_in_fp32_modules(data_types):
    try:
        return kept_in_fp32.setting_of({key.DATA_TYPES: data_types}, "the ds_config")
    except _core.ConfigError as error:
        raise DeepSpeedConfigError(str(error)) from None


# Checkpoints and pipelines

def get_checkpoint_tag_validation_mode(checkpoint_params):
    mode = str(checkpoint_params.get(key.CHECKPOINT_TAG_VALIDATION, key.CHECKPOINT_TAG_VALIDATION_DEFAULT)).upper()
    if mode not in key.CHECKPOINT_TAG_VALIDATION_MODES:
        raise DeepSpeedConfigError(f"checkpoint.tag_validation is {mode}; "
                                   f"use one of {', '.join(key.CHECKPOINT_TAG_VALIDATION_MODES)}")
    return mode


def get_checkpoint_parallel_write_pipeline(checkpoint_params):
    value = reader_of("checkpoint.parallel_write.pipeline_stage")({key.CHECKPOINT: checkpoint_params})
    if not isinstance(value, bool):
        raise DeepSpeedConfigError(f"checkpoint.parallel_write.pipeline_stage is {value!r}; use true or false")
    return value


def get_pipeline_config(param_dict):
    defaults = _key_table.defaults_of("pipeline")
    del defaults["use_reentrant"]  # which DeepSpeed's engine looks up where it uses it
    return {**defaults, **param_dict.get("pipeline", {})}


class DeepSpeedConfigWriter:
    """Collects keys, and writes them as a JSON file."""

    def __init__(self, data=None):
        self.data = {} if data is None else data

    def add_config(self, key, value):
        self.data[key] = value

    def load_config(self, filename):
        from tessera.config_text import read_config
        self.data = read_config(filename)

    def write_config(self, filename):
        with open(filename, "w") as out:
            json.dump(self.data, out, indent=4)
