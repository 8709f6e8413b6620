"""Reading the top-level keys of a ds_config that are no block of their own: one function a key."""

import json
from enum import Enum

import torch

from deepspeed.runtime import constants as key
from tessera import _core


class DeepSpeedConfigError(_core.ConfigError):
    """A key that cannot be used, or a value that it cannot have. Its .what, .where and .fix: where Tessera found it."""


class DtypeEnum(Enum):
    """dtypes by any of their names: DtypeEnum("half"), DtypeEnum("torch.float16") and DtypeEnum(torch.float16)."""

    fp16 = torch.float16
    fp32 = torch.float32
    int8 = torch.int8
    bf16 = torch.bfloat16

    @classmethod
    def _missing_(cls, name):
        return _DTYPE_OF.get(name)


_DTYPE_OF = {name: dtype for dtype, names in {
    DtypeEnum.fp16: ("torch.float16", "fp16", "float16", "half"),
    DtypeEnum.fp32: ("torch.float32", "fp32", "float32", "float"),
    DtypeEnum.int8: ("torch.int8", "int8"),
    DtypeEnum.bf16: ("torch.bfloat16", "bf16", "bfloat16"),
}.items() for name in names}

PIPELINE_DEFAULTS = {"stages": "auto", "partition": "best", "seed_layers": False, "activation_checkpoint_interval": 0,
                     "pipe_partitioned": True, "grad_partitioned": True}

_USE_INSTEAD = {
    "nebula": "leave it out: checkpoints are written without it",
    "compression_training": "leave it out",
    "amp": "use fp16, bf16 or torch_autocast",
    "quantize_training": "leave it out",
    "sparse_gradients": "leave it out: nn.Embedding(sparse=True) is reduced sparsely without it",
    "eigenvalue": "leave it out",
    "sparse_attention": "leave it out",
    "elasticity": "leave it out, and give the batch sizes",
    "graph_harvesting": "leave it out",
    "curriculum_learning": "use data_efficiency.data_sampling.curriculum_learning",
    "progressive_layer_drop": "leave it out",
}
_USE_INSTEAD_IN_ZERO = {
    "mics_shard_size": "use zero_hpz_partition_size",
    "mics_hierarchical_params_gather": "leave it out",
    "zeropp_loco_param": "leave it out",
}


def reject_removed_keys(param_dict):
    """DeepSpeedConfigError for keys that DeepSpeed 0.19.8 removed, whatever their value."""
    zero = param_dict.get("zero_optimization")
    zero = zero if isinstance(zero, dict) else {}
    for prefix, block, removed in (("", param_dict, _USE_INSTEAD),
                                   ("zero_optimization.", zero, _USE_INSTEAD_IN_ZERO)):
        for name, instead in removed.items():
            if name in block:
                raise DeepSpeedConfigError(f"DeepSpeed 0.19.8 removed the config key '{prefix}{name}': {instead}")


def _reader(name, default):
    def read(param_dict):
        return param_dict.get(name, default)

    read.__doc__ = f"The value of '{name}', or {default!r}."
    return read


get_train_batch_size = _reader(key.TRAIN_BATCH_SIZE, None)
get_train_micro_batch_size_per_gpu = _reader(key.TRAIN_MICRO_BATCH_SIZE_PER_GPU, None)
get_gradient_accumulation_steps = _reader(key.GRADIENT_ACCUMULATION_STEPS, None)
get_managed_gradient_accumulation = _reader(key.MANAGED_GRADIENT_ACCUMULATION, True)
get_steps_per_print = _reader(key.STEPS_PER_PRINT, None)
get_dump_state = _reader(key.DUMP_STATE, False)
get_disable_python_gc = _reader(key.DISABLE_PYTHON_GC, False)
get_disable_allgather = _reader(key.DISABLE_ALLGATHER, False)
get_prescale_gradients = _reader(key.PRESCALE_GRADIENTS, False)
get_gradient_predivide_factor = _reader(key.GRADIENT_PREDIVIDE_FACTOR, 1.0)
get_gradient_clipping = _reader(key.GRADIENT_CLIPPING, 1.0)
get_zero_allow_untested_optimizer = _reader(key.ZERO_ALLOW_UNTESTED_OPTIMIZER, False)
get_zero_force_ds_cpu_optimizer = _reader(key.ZERO_FORCE_DS_CPU_OPTIMIZER, True)
get_wall_clock_breakdown = _reader(key.WALL_CLOCK_BREAKDOWN, False)
get_memory_breakdown = _reader(key.MEMORY_BREAKDOWN, False)
get_dataloader_drop_last = _reader(key.DATALOADER_DROP_LAST, False)
get_log_level = _reader(key.LOG_LEVEL, None)
get_checkpoint_params = _reader(key.CHECKPOINT, {})
get_data_types_params = _reader(key.DATA_TYPES, {})
get_expert_data_topo_config = _reader(key.USE_DATA_BEFORE_EXPERT_PARALLEL, False)


def get_communication_data_type(param_dict, comm_type=key.COMMUNICATION_DATA_TYPE, comm_data_type_default=None):
    """The dtype that gradients are reduced in, or None: the model's own."""
    value = param_dict.get(comm_type, comm_data_type_default)
    known = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    if value is None:
        return None
    if not isinstance(value, str) or value.lower() not in known:
        raise ValueError(f"Invalid {comm_type}: {value!r}; use one of {', '.join(known)}")
    return known[value.lower()]


def get_gradient_allreduce_op(param_dict):
    value = param_dict.get(key.GRADIENT_ALLREDUCE_OP, key.GRADIENT_ALLREDUCE_OP_DEFAULT)
    name = value.lower() if isinstance(value, str) else value
    if name not in key.GRADIENT_ALLREDUCE_OP_SUPPORTED:
        raise ValueError(f"Invalid gradient_allreduce_op: {value!r}; use mean or sum")
    return name


# Optimizer and schedule

def get_optimizer_name(param_dict):
    return param_dict.get(key.OPTIMIZER, {}).get(key.TYPE)


def get_optimizer_params(param_dict):
    return param_dict.get(key.OPTIMIZER, {}).get(key.OPTIMIZER_PARAMS) if get_optimizer_name(param_dict) else None


def get_optimizer_gradient_clipping(param_dict):
    return (get_optimizer_params(param_dict) or {}).get(key.MAX_GRAD_NORM)


def get_optimizer_legacy_fusion(param_dict):
    return param_dict.get(key.OPTIMIZER, {}).get(key.LEGACY_FUSION, False)


def get_scheduler_name(param_dict):
    return param_dict.get(key.SCHEDULER, {}).get(key.TYPE)


def get_scheduler_params(param_dict):
    return param_dict.get(key.SCHEDULER, {}).get(key.SCHEDULER_PARAMS) if get_scheduler_name(param_dict) else None


# Precision

def get_torch_autocast_enabled(param_dict):
    return param_dict.get(key.TORCH_AUTOCAST, {}).get(key.TORCH_AUTOCAST_ENABLED, False)


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
    value = data_types.get(key.KEEP_IN_FP32_MODULES, "auto")
    listed = isinstance(value, list) and all(isinstance(name, str) for name in value)
    if value != "auto" and not listed:
        raise DeepSpeedConfigError(f"data_types.keep_in_fp32_modules is {value!r}; use \"auto\" or a list of names")
    return value


# Checkpoints and pipelines

def get_checkpoint_tag_validation_mode(checkpoint_params):
    mode = str(checkpoint_params.get(key.CHECKPOINT_TAG_VALIDATION, key.CHECKPOINT_TAG_VALIDATION_DEFAULT)).upper()
    if mode not in key.CHECKPOINT_TAG_VALIDATION_MODES:
        raise DeepSpeedConfigError(f"checkpoint.tag_validation is {mode}; "
                                   f"use one of {', '.join(key.CHECKPOINT_TAG_VALIDATION_MODES)}")
    return mode


def get_checkpoint_parallel_write_pipeline(checkpoint_params):
    value = checkpoint_params.get(key.CHECKPOINT_PARALLEL_WRITE, {}).get("pipeline_stage", False)
    if not isinstance(value, bool):
        raise DeepSpeedConfigError(f"checkpoint.parallel_write.pipeline_stage is {value!r}; use true or false")
    return value


def get_pipeline_config(param_dict):
    return {**PIPELINE_DEFAULTS, **param_dict.get("pipeline", {})}


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
