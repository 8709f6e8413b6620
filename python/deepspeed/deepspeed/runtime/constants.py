"""Keys of a ds_config by name, and what each is when it is not given (`…_DEFAULT`)."""

from deepspeed import _key_table

# Routes of a batch through the engine, and keys of the dicts that pass between its parts.
CHECK_OVERFLOW = "check_overflow"
DATA_PARALLEL_GROUP = "data_parallel_group"
DDP_BFLOAT16 = "ddp_bf16"
GLOBAL_RANK = "global_rank"
PIPE_REPLICATED = "ds_pipe_replicated"
ROUTE_ENCODE = "encode"
ROUTE_EVAL = "eval"
ROUTE_PREDICT = "predict"
ROUTE_TRAIN = "train"

# Blocks and their keys.
globals().update(_key_table.constants("", "", """
    dataloader_drop_last gradient_accumulation_steps managed_gradient_accumulation train_batch_size
    train_micro_batch_size_per_gpu vocabulary_size zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    communication_data_type disable_allgather gradient_allreduce_op gradient_clipping gradient_predivide_factor
    prescale_gradients seq_parallel_communication_data_type disable_python_gc dump_state log_level memory_breakdown
    steps_per_print wall_clock_breakdown"""))
globals().update(_key_table.constants("", "data_types", "buffer_dtype grad_accum_dtype keep_in_fp32_modules param_dtype"))
globals().update(_key_table.constants("FP16_", "fp16", """
    auto_cast consecutive_hysteresis enabled hysteresis initial_scale_power loss_scale loss_scale_window
    fp16_master_weights_and_grads min_loss_scale"""))
globals().update(_key_table.constants("BFLOAT16_", "bf16", """
    enabled immediate_grad_update bf16_master_weights_and_grads bf16_optimizer_states"""))
globals().update(_key_table.constants("TORCH_AUTOCAST_", "torch_autocast", "enabled dtype lower_precision_safe_modules"))
globals().update(_key_table.constants("CHECKPOINT_", "checkpoint", "tag_validation parallel_write"))
globals().update(_key_table.constants("CHECKPOINT_PARALLEL_WRITE_", "checkpoint.parallel_write", "pipeline_stage"))
globals().update(_key_table.constants("", "optimizer", "legacy_fusion"))
BFLOAT16, BFLOAT16_OLD, CHECKPOINT, DATA_TYPES, FP16 = "bf16", "bfloat16", "checkpoint", "data_types", "fp16"
OPTIMIZER, SCHEDULER, TORCH_AUTOCAST = "optimizer", "scheduler", "torch_autocast"

# Under names of their own, or with a default that is not the table's.
BFLOAT16_CHECK_OVERFLOW_DEFAULT = False
BFLOAT16_IMMEDIATE_GRAD_UPDATE_DEFAULT = True
CHECKPOINT_TAG_VALIDATION_DEFAULT = _key_table.default_of("checkpoint.tag_validation").upper()
CHECKPOINT_TAG_VALIDATION_MODES = sorted((mode.upper() for mode in _key_table.choices_of("checkpoint.tag_validation")),
                                         key=lambda mode: mode != CHECKPOINT_TAG_VALIDATION_DEFAULT)
GRADIENT_ALLREDUCE_OP_SUPPORTED = tuple(_key_table.choices_of("gradient_allreduce_op"))
GRADIENT_ALLREDUCE_OP_MEAN, GRADIENT_ALLREDUCE_OP_SUM = GRADIENT_ALLREDUCE_OP_SUPPORTED
LOAD_UNIVERSAL_CHECKPOINT = "load_universal"
LOAD_UNIVERSAL_CHECKPOINT_DEFAULT = _key_table.default_of("checkpoint.load_universal")
MAX_GRAD_NORM = "max_grad_norm"
OPTIMIZER_PARAMS = SCHEDULER_PARAMS = "params"
OPTIMIZER_TYPE_DEFAULT = SCHEDULER_TYPE_DEFAULT = None
TYPE = "type"
USE_DATA_BEFORE_EXPERT_PARALLEL = "use_data_before_expert_parallelism"
USE_DATA_BEFORE_EXPERT_PARALLEL_DEFAULT = _key_table.default_of("use_data_before_expert_parallelism")
USE_NODE_LOCAL_STORAGE_CHECKPOINT = "use_node_local_storage"
USE_NODE_LOCAL_STORAGE_CHECKPOINT_DEFAULT = _key_table.default_of("checkpoint.use_node_local_storage")


class ValidationMode:
    """What to do when ranks save a checkpoint under different tags."""

    WARN = "WARN"
    IGNORE = "IGNORE"
    FAIL = "FAIL"
