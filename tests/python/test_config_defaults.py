"""What a ds_config, DeepSpeed's optimizers and its schedules are where nothing is given: the defaults that DeepSpeed 0.19.8
documents. Types and ranges have tests of their own in test_ds_config.py."""

import inspect
import sys

import pytest
import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime import config_keys, lr_schedules
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero.config import (
    DeepSpeedZeroConfig,
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
    ZenFlowConfig,
)
from pydantic import BaseModel, ValidationError

PLAIN = DeepSpeedConfig({"train_batch_size": 1, "comms_logger": {}})
OFF = {"enabled": False}

FP16 = {**OFF, "auto_cast": False, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
        "consecutive_hysteresis": False, "min_loss_scale": 1, "fp16_master_weights_and_grads": False}
BF16 = {**OFF, "immediate_grad_update": False, "check_grad_overflow": True, "bf16_master_weights_and_grads": False,
        "bf16_optimizer_states": False}
ZERO = {
    "stage": 0, "contiguous_gradients": True, "reduce_scatter": True, "reduce_bucket_size": 5e8,
    "use_multi_rank_bucket_allreduce": True, "allgather_partitions": True, "allgather_bucket_size": 5e8,
    "overlap_comm": False,  # True at stage 3
    "compute_grad_norm": True, "load_from_fp32_weights": True, "elastic_checkpoint": False, "offload_param": None,
    "offload_optimizer": None, "zenflow": None, "sub_group_size": 1e9, "prefetch_bucket_size": 5e7,
    "param_persistence_threshold": 1e5, "model_persistence_threshold": sys.maxsize, "max_live_parameters": 1e9,
    "max_reuse_distance": 1e9, "gather_16bit_weights_on_model_save": False, "module_granularity_threshold": 0,
    "use_all_reduce_for_fetch_params": False, "allgather_sequential": False, "ignore_unused_parameters": True,
    "legacy_stage1": False, "round_robin_gradients": False, "parameter_alignment": False, "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False, "zero_quantized_nontrainable_weights": False, "zero_quantized_gradients": False,
    "memory_efficient_linear": True, "pipeline_loading_checkpoint": False, "override_module_apply": True,
    "log_trace_cache_warnings": False, "enable_sanity_checks": False, "save_muon_momentum_buffer_in_memory": False,
}
ZERO_DEPRECATED = {"cpu_offload_param": None, "cpu_offload": None, "cpu_offload_use_pin_memory": None,
                   "stage3_gather_fp16_weights_on_model_save": False}
OFFLOAD_PARAM = {"device": "none", "nvme_path": None, "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9,
                 "pin_memory": True}
OFFLOAD_OPTIMIZER = {"device": "none", "nvme_path": None, "buffer_count": 4, "pin_memory": True, "pipeline_read": False,
                     "pipeline_write": False, "fast_init": False, "ratio": 1.0, "super_offload": False,
                     "cpuadam_cores_perc": 0.8}
ZENFLOW = {"topk_ratio": 0.1, "select_strategy": "auto", "select_interval": "auto", "update_interval": "auto",
           "overlap_step": False, "offload": False, "auto_ratio": 0.99, "full_warm_up_rounds": 0,
           "pt_reserved_cores_perc": 0.5, "steps_per_epoch": None}
FILES = {**OFF, "output_path": "", "job_name": "DeepSpeedJobName"}
COMET = {**OFF, "samples_log_interval": 100, "project": None, "workspace": None, "api_key": None, "experiment_name": None,
         "experiment_key": None, "online": None, "mode": None}
COMPILE = {
    "deepcompile": False, "autoep_non_moe": False, "free_activation": False, "free_activation_threshold": 10 * 2**20,
    "offload_activation": False, "offload_activation_pin_memory": True, "offload_opt_states": False,
    "offload_parameters": False, "double_buffer": True, "symmetric_memory": False, "debug_log": False,
    "sync_before_reduce": False, "sync_after_reduce": False, "sync_before_allgather": False, "sync_after_allgather": False,
    "keep_int_input_tensors": True, "keep_all_input_tensors": False, "passes": None}
HYBRID_ENGINE = {**OFF, "max_out_tokens": 512, "inference_tp_size": 1, "release_inference_cache": False,
                 "pin_parameters": True, "tp_gather_partition_size": 8, "enable_cuda_graph": False}
TENSOR_PARALLEL = {
    "autotp_size": 0, "dtype": torch.float16, "tp_overlap_comm": False, "vocab_parallel_lm_head": None,
    "vocab_parallel_ce_backend": "torch", "injection_policy_tuple": None, "partition_config": None, "preset_model": None,
    "keep_module_on_host": False, "replace_with_kernel_inject": False}


def fields_of(block):
    """Values by name; blocks inside of it left out."""
    return {name: getattr(block, name) for name in type(block).model_fields
            if not isinstance(getattr(block, name), BaseModel)}


@pytest.mark.parametrize("block, expected", [
    (PLAIN.float16_config, FP16),
    (PLAIN.bfloat16_config, BF16),
    (PLAIN.zero_config, {**ZERO, **ZERO_DEPRECATED}),
    (DeepSpeedZeroConfig(stage=3), {**ZERO, **ZERO_DEPRECATED, "stage": 3, "overlap_comm": True}),
    (DeepSpeedZeroOffloadParamConfig(), OFFLOAD_PARAM),
    (DeepSpeedZeroOffloadOptimizerConfig(), OFFLOAD_OPTIMIZER),
    (ZenFlowConfig(), ZENFLOW),
    (PLAIN.comms_config.comms_logger, {**OFF, "prof_all": True, "prof_ops": [], "verbose": False, "debug": False}),
    (PLAIN.monitor_config.tensorboard, FILES),
    (PLAIN.monitor_config.csv_monitor, FILES),
    (PLAIN.monitor_config.wandb, {**OFF, "group": None, "team": None, "project": "deepspeed"}),
    (PLAIN.monitor_config.comet, COMET),
    (PLAIN.timers_config, {"enabled": True, "synchronized": True}),
    (PLAIN.compile_config, COMPILE),
    (PLAIN.hybrid_engine, HYBRID_ENGINE),
    (PLAIN.tensor_parallel_config, TENSOR_PARALLEL),
    (PLAIN.tensor_parallel_config.tensor_parallel, {"tp_size": 1, "tp_grain_size": 1, "mpu": None, "tp_group": None}),
], ids=lambda value: type(value).__name__ if isinstance(value, BaseModel) else "")
def test_blocks_that_are_checked(block, expected):
    assert fields_of(block) == expected


def test_modules_that_are_gathered_as_one():
    leaf = PLAIN.zero_config.leaf_module
    assert len(leaf.classes) == 3 and all(name.startswith("transformers.") for name in leaf.classes)
    assert (leaf.names, leaf.name_suffixes) == ([], [])


@pytest.mark.parametrize("name", [
    "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters",
    "max_reuse_distance", "module_granularity_threshold"])
def test_sizes_of_stage_3_have_a_second_name(name):
    assert getattr(DeepSpeedZeroConfig(**{f"stage3_{name}": 7}), name) == 7


@pytest.mark.parametrize("block, field, value", [
    (DeepSpeedZeroConfig, "stage", 4), (DeepSpeedZeroConfig, "reduce_bucket_size", 0),
    (DeepSpeedZeroConfig, "allgather_bucket_size", -1), (DeepSpeedZeroConfig, "zero_hpz_partition_size", -1),
    (DeepSpeedZeroOffloadParamConfig, "device", "disk"), (DeepSpeedZeroOffloadParamConfig, "buffer_count", -1),
    (DeepSpeedZeroOffloadOptimizerConfig, "ratio", 1.5), (ZenFlowConfig, "topk_ratio", 1.0),
    (ZenFlowConfig, "select_strategy", "never"), (ZenFlowConfig, "update_interval", 0),
])
def test_out_of_range(block, field, value):
    with pytest.raises(ValidationError, match=field):
        block(**{field: value})


def test_blocks_that_are_not_checked():
    assert vars(PLAIN.activation_checkpointing_config).items() >= {
        "partition_activations": False, "number_checkpoints": None, "contiguous_memory_optimization": False,
        "synchronize_checkpoint_boundary": False, "profile": False, "cpu_checkpointing": False}.items()
    assert vars(PLAIN.flops_profiler_config) == {
        **OFF, "recompute_fwd_factor": 0.0, "profile_step": 1, "module_depth": -1, "top_modules": 1, "detailed": True,
        "output_file": None}
    assert PLAIN.aio_config == {"block_size": 1048576, "queue_depth": 8, "intra_op_parallelism": 1, "single_submit": False,
                                "overlap_events": True, "use_gds": False}
    assert PLAIN.checkpoint_config == {"tag_validation": "WARN", "checkpoint_serialization": True, "writer": None}
    assert PLAIN.pipeline == {"stages": "auto", "partition": "best", "seed_layers": False,
                              "activation_checkpoint_interval": 0, "pipe_partitioned": True, "grad_partitioned": True}
    sampling = PLAIN.data_efficiency_config["data_sampling"]
    assert (PLAIN.data_efficiency_config["seed"], sampling["num_epochs"], sampling["num_workers"]) == (1234, 1000, 0)


@pytest.mark.parametrize("attribute, expected", [
    ("managed_gradient_accumulation", True), ("dataloader_drop_last", False), ("gradient_clipping", 1.0),
    ("zero_allow_untested_optimizer", False), ("zero_force_ds_cpu_optimizer", True), ("optimizer_name", None),
    ("optimizer_params", None), ("optimizer_legacy_fusion", False), ("scheduler_name", None), ("scheduler_params", None),
    ("torch_autocast_enabled", False), ("torch_autocast_dtype", None),
    ("torch_autocast_lower_precision_safe_modules", None), ("grad_accum_dtype", None), ("param_dtype", None),
    ("buffer_dtype", None), ("keep_in_fp32_modules", "auto"), ("communication_data_type", None),
    ("seq_parallel_communication_data_type", torch.float32), ("prescale_gradients", False),
    ("gradient_predivide_factor", 1.0), ("gradient_allreduce_op", "mean"), ("disable_allgather", False),
    ("load_universal_checkpoint", False), ("use_node_local_storage", False), ("checkpoint_parallel_write_pipeline", False),
    ("steps_per_print", None), ("wall_clock_breakdown", False), ("memory_breakdown", False), ("dump_state", False),
    ("disable_python_gc", False), ("log_level", None), ("use_data_before_expert_parallel_", False),
    ("data_efficiency_enabled", False),
])
def test_single_keys(attribute, expected):
    assert getattr(PLAIN, attribute) == expected


def test_names_of_dtypes():
    names = {torch.float32: "fp32 float32 float torch.float32", torch.bfloat16: "bf16 bfloat16 torch.bfloat16",
             torch.float16: "fp16 float16 half torch.float16", torch.int8: "int8 torch.int8"}
    for dtype, spellings in names.items():
        assert {config_keys.DtypeEnum(name).value for name in [dtype, *spellings.split()]} == {dtype}
    with pytest.raises(ValueError):
        config_keys.DtypeEnum("float64")


def defaults_of(function):
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()
            if parameter.default is not inspect.Parameter.empty}


ADAM = {"lr": 1e-3, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False}


@pytest.mark.parametrize("cls, expected", [
    (FusedAdam, {**ADAM, "adam_w_mode": True, "set_grad_none": True}),
    (DeepSpeedCPUAdam, {**ADAM, "adamw_mode": True, "fp32_optimizer_states": True}),
    (DeepSpeedCPUAdagrad, {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0, "amsgrad": False}),
    (FusedLamb, {**ADAM, "eps_inside_sqrt": False, "max_coeff": 10, "min_coeff": 0.01}),
    (FusedLion, {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0}),
    (DeepSpeedCPULion, {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0}),
])
def test_optimizers(cls, expected):
    assert defaults_of(cls).items() >= expected.items()
    group = cls([torch.nn.Parameter(torch.ones(1))]).param_groups[0]
    assert all(group[key] == value for key, value in expected.items() if key in group)


START = {"last_batch_iteration": -1}
WARMUP = {"warmup_num_steps": 1000, "warmup_type": "log", **START}


@pytest.mark.parametrize("cls, required, expected", [
    (lr_schedules.LRRangeTest, [], {
        "lr_range_test_min_lr": 1e-3, "lr_range_test_step_size": 2000, "lr_range_test_step_rate": 1.0,
        "lr_range_test_staircase": False, **START}),
    (lr_schedules.OneCycle, ["cycle_min_lr", "cycle_max_lr"], {
        "decay_lr_rate": 0, "cycle_first_step_size": 2000, "cycle_second_step_size": None, "cycle_first_stair_count": 0,
        "cycle_second_stair_count": None, "decay_step_size": 0, "cycle_momentum": True, "cycle_min_mom": 0.8,
        "cycle_max_mom": 0.9, "decay_mom_rate": 0, **START}),
    (lr_schedules.WarmupLR, [], {"warmup_min_lr": 0, "warmup_max_lr": None, **WARMUP}),
    (lr_schedules.WarmupDecayLR, ["total_num_steps"], {"warmup_min_lr": 0, "warmup_max_lr": 0.001, **WARMUP}),
    (lr_schedules.WarmupCosineLR, ["total_num_steps"], {"warmup_min_ratio": 0, "cos_min_ratio": 0.0001, **WARMUP}),
])
def test_schedules(cls, required, expected):
    assert defaults_of(cls) == expected
    assert set(inspect.signature(cls).parameters) == {"optimizer", *required, *expected}
