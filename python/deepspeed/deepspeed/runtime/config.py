"""A ds_config, read and checked: one attribute a key or block.

    DeepSpeedConfig({"train_batch_size": 32, "zero_optimization": {"stage": 2}}).zero_config.stage == 2

Unknown keys at the top are ignored, unknown keys inside a checked block are refused. Batch sizes that are not given
are computed from the others and the number of data-parallel ranks.
"""

import copy
import json

from deepspeed import comm as dist
from deepspeed import _names
from deepspeed._blocks import (  # noqa: F401
    CompileConfig,
    DeepSpeedActivationCheckpointingConfig,
    DeepSpeedCommsConfig,
    DeepSpeedFlopsProfilerConfig,
    HybridEngineConfig,
    get_aio_config,
    get_bfloat16_config,
    get_checkpoint_config,
    get_float16_config,
    get_hybrid_engine_config,
    get_monitor_config,
    get_tensor_parallel_config,
    get_timers_config,
)
from deepspeed._key_table import together
from deepspeed.runtime import config_keys as read
from deepspeed.runtime.config_keys import DeepSpeedConfigError, DtypeEnum  # noqa: F401
from deepspeed.runtime.config_utils import DeepSpeedConfigModel, ScientificNotationEncoder
from deepspeed.runtime.constants import ValidationMode
from deepspeed.runtime.data_pipeline.config import get_data_efficiency_config, get_data_efficiency_enabled
from deepspeed.runtime.zero.config import ZeroStageEnum, get_zero_config
from deepspeed.utils.logging import logger
from tessera import _core
from tessera.config_text import read_config

ADAM_OPTIMIZER = "adam"
ADAMW_OPTIMIZER = "adamw"
ADAGRAD_OPTIMIZER = "adagrad"
LAMB_OPTIMIZER = "lamb"
LION_OPTIMIZER = "lion"
MUON_OPTIMIZER = "muon"
MUADAM_OPTIMIZER = "muadam"
MUADAMW_OPTIMIZER = "muadamw"
MUSGD_OPTIMIZER = "musgd"
DEEPSPEED_OPTIMIZERS = [ADAGRAD_OPTIMIZER, ADAM_OPTIMIZER, ADAMW_OPTIMIZER, LAMB_OPTIMIZER, MUADAM_OPTIMIZER,
                        MUADAMW_OPTIMIZER, MUSGD_OPTIMIZER, LION_OPTIMIZER, MUON_OPTIMIZER]

TORCH_ADAM_PARAM = "torch_adam"
ADAM_W_MODE = "adam_w_mode"
ADAM_W_MODE_DEFAULT = True
TENSOR_CORE_ALIGN_SIZE = 8

# DeepSpeed has the readers of single keys and the constants here.
_names.serve(__name__)


class DeepSpeedConfig:
    """`config` is a dict, the path of a file, or base64 text; a dict is not changed. `mpu` and `mesh_device` say over
    how many ranks the data is split, where that is not the world."""

    def __init__(self, config, mpu=None, mesh_device=None):
        self._param_dict = copy.copy(read_config(config))
        self.global_rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = _data_parallel_size(self._param_dict, mpu, mesh_device)
        read.reject_removed_keys(self._param_dict)
        self._initialize_params(self._param_dict)
        self._configure_train_batch_size()
        self._do_sanity_check()

    def _initialize_params(self, given):
        self._read_batch_sizes(given)
        self._read_gradients(given)
        self._read_precision(given)
        self._read_optimizer(given)
        self._read_blocks(given)
        self._read_checkpoint(given)
        self._read_messages(given)

    def _read_batch_sizes(self, given):
        self.train_batch_size = read.get_train_batch_size(given)
        self.train_micro_batch_size_per_gpu = read.get_train_micro_batch_size_per_gpu(given)
        self.gradient_accumulation_steps = read.get_gradient_accumulation_steps(given)
        self.managed_gradient_accumulation = read.get_managed_gradient_accumulation(given)
        self.dataloader_drop_last = read.get_dataloader_drop_last(given)

    def _read_gradients(self, given):
        self.disable_allgather = read.get_disable_allgather(given)
        self.communication_data_type = read.get_communication_data_type(given)
        self.seq_parallel_communication_data_type = read.get_communication_data_type(
            given, read.key.SEQ_PARALLEL_COMMUNICATION_DATA_TYPE, read.key.SEQ_PARALLEL_COMMUNICATION_DATA_TYPE_DEFAULT)
        self.prescale_gradients = read.get_prescale_gradients(given)
        self.gradient_predivide_factor = read.get_gradient_predivide_factor(given)
        self.gradient_allreduce_op = read.get_gradient_allreduce_op(given)
        self.gradient_clipping = read.get_gradient_clipping(given)

    def _read_precision(self, given):
        self.float16_config = get_float16_config(given)
        self.bfloat16_config = get_bfloat16_config(given)
        together(AssertionError, **{name: {"enabled": config.enabled} for name, config in (
            ("fp16", self.float16_config), ("bf16", self.bfloat16_config))})
        self.torch_autocast_enabled = read.get_torch_autocast_enabled(given)
        self.torch_autocast_dtype = read.get_torch_autocast_dtype(given)
        self.torch_autocast_lower_precision_safe_modules = read.get_lower_precision_safe_modules(given)
        types = read.get_data_types_params(given)
        self.grad_accum_dtype = types.get("grad_accum_dtype")
        self.param_dtype = types.get("param_dtype")
        self.buffer_dtype = types.get("buffer_dtype")
        self.keep_in_fp32_modules = read.get_keep_in_fp32_modules(types)

    def _read_optimizer(self, given):
        name = read.get_optimizer_name(given)
        known = name is not None and name.lower() in DEEPSPEED_OPTIMIZERS
        self.optimizer_name = name.lower() if known else name
        self.optimizer_params = read.get_optimizer_params(given)
        self.optimizer_legacy_fusion = read.get_optimizer_legacy_fusion(given)
        self.zero_allow_untested_optimizer = read.get_zero_allow_untested_optimizer(given)
        self.zero_force_ds_cpu_optimizer = read.get_zero_force_ds_cpu_optimizer(given)
        self.scheduler_name = read.get_scheduler_name(given)
        self.scheduler_params = read.get_scheduler_params(given)

    def _read_blocks(self, given):
        self.zero_config = get_zero_config(given)
        self.zero_optimization_stage = self.zero_config.stage
        self.zero_enabled = self.zero_optimization_stage > 0
        self.activation_checkpointing_config = DeepSpeedActivationCheckpointingConfig(given)
        self.comms_config = DeepSpeedCommsConfig(given)
        self.monitor_config = get_monitor_config(given)
        self.flops_profiler_config = DeepSpeedFlopsProfilerConfig(given)
        self.hybrid_engine = get_hybrid_engine_config(given)
        self.pipeline = read.get_pipeline_config(given)
        self.data_efficiency_enabled = get_data_efficiency_enabled(given)
        self.data_efficiency_config = get_data_efficiency_config(given)
        self.use_data_before_expert_parallel_ = read.get_expert_data_topo_config(given)
        self.aio_config = get_aio_config(given)
        self.compile_config = CompileConfig(**given.get("compile", {}))
        self.timers_config = get_timers_config(given)
        self.tensor_parallel_config = get_tensor_parallel_config(given)
        self.weight_quantization_config = given.get("weight_quantization")

    def _read_checkpoint(self, given):
        params = read.get_checkpoint_params(given)
        mode = read.get_checkpoint_tag_validation_mode(params)
        self.checkpoint_tag_validation_enabled = mode != ValidationMode.IGNORE
        self.checkpoint_tag_validation_fail = mode == ValidationMode.FAIL
        self.load_universal_checkpoint = read.get_load_universal(given)
        self.use_node_local_storage = read.get_use_node_local_storage(given)
        self.checkpoint_parallel_write_pipeline = read.get_checkpoint_parallel_write_pipeline(params)
        self.checkpoint_config = get_checkpoint_config(given)

    def _read_messages(self, given):
        self.steps_per_print = read.get_steps_per_print(given)
        self.dump_state = read.get_dump_state(given)
        self.disable_python_gc = read.get_disable_python_gc(given)
        self.wall_clock_breakdown = read.get_wall_clock_breakdown(given) or self.flops_profiler_config.enabled
        self.memory_breakdown = read.get_memory_breakdown(given)
        self.log_level = read.get_log_level(given)

    # Batch sizes

    def _configure_train_batch_size(self):
        self._set_batch_related_parameters()
        self._batch_assertion()

    def _set_batch_related_parameters(self):
        (self.train_batch_size, self.train_micro_batch_size_per_gpu,
         self.gradient_accumulation_steps) = self._resolved_batch_sizes()

    def _batch_assertion(self):
        self._resolved_batch_sizes()

    def _resolved_batch_sizes(self):
        """All three; AssertionError, as DeepSpeed raises it, where they do not fit together."""
        given = {key: _whole(getattr(self, key)) for key in
                 (read.key.TRAIN_BATCH_SIZE, read.key.TRAIN_MICRO_BATCH_SIZE_PER_GPU, read.key.GRADIENT_ACCUMULATION_STEPS)}
        try:
            return _core.resolve_batch_sizes(**given, data_parallel_size=_whole(self.world_size), place="the ds_config")
        except _core.ConfigError as error:
            said = ", ".join(f"{key} is {value}" for key, value in given.items())
            raise AssertionError(f"{said}: {error}") from None

    # What one key allows another

    def _do_sanity_check(self):
        self._do_error_check()
        self._do_warning_check()

    def _do_error_check(self):
        stage, sharded = self.zero_optimization_stage, self.zero_enabled
        half, brain = self.float16_config, self.bfloat16_config
        if half.enabled and half.fp16_master_weights_and_grads:
            assert sharded, "fp16.fp16_master_weights_and_grads needs zero_optimization.stage 1, 2 or 3"
        if brain.bf16_master_weights_and_grads:
            assert sharded, "bf16.bf16_master_weights_and_grads needs zero_optimization.stage 1, 2 or 3"
        together(AssertionError, bf16={key: getattr(brain, key) for key in (
            "bf16_optimizer_states", "bf16_master_weights_and_grads")})
        if self.gradient_allreduce_op == "sum":
            self._check_sum_of_gradients(stage)

    def _check_sum_of_gradients(self, stage):
        sentence = 'gradient_allreduce_op "sum" is not supported with {}; use "mean"'
        if stage == ZeroStageEnum.weights:
            raise ValueError(sentence.format("ZeRO stage 3"))
        if self.zero_config.zenflow is not None:
            raise ValueError(sentence.format("ZenFlow"))
        if self.compile_config.deepcompile:
            raise ValueError(sentence.format("DeepCompile"))

    def _do_warning_check(self):
        vocabulary = self._param_dict.get("vocabulary_size")
        if vocabulary and vocabulary % TENSOR_CORE_ALIGN_SIZE != 0:
            logger.warning(f"vocabulary_size {vocabulary} is not a multiple of {TENSOR_CORE_ALIGN_SIZE}: "
                           "matrix products are slower than they could be")
        max_grad_norm = read.get_optimizer_gradient_clipping(self._param_dict)
        if max_grad_norm:
            logger.warning(f"optimizer.params.max_grad_norm ({max_grad_norm}) is not an optimizer parameter: use the key gradient_clipping")

    # Printing

    def print_user_config(self):
        text = json.dumps(self._param_dict, sort_keys=True, indent=4, cls=ScientificNotationEncoder,
                          separators=(",", ":"))
        logger.info(f"  json = {text}")

    def print(self, name):
        logger.info(f"{name}:")
        for attribute in sorted(vars(self)):
            if attribute != "_param_dict":
                logger.info(f"  {attribute:.<29} {getattr(self, attribute)}")
        self.print_user_config()


def _whole(number):
    """2.0 as 2; anything else as it is."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _data_parallel_size(given, mpu, mesh_device):
    """Over how many ranks one global batch is split."""
    if mesh_device is not None:
        return dist.get_world_size(mesh_device.get_group(mesh_dim="data_parallel"))
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    if mpu is not None:
        if hasattr(mpu, "get_data_parallel_world_size"):
            return mpu.get_data_parallel_world_size()
        return world_size / mpu.get_sequence_parallel_world_size()
    if given.get("sequence_parallel_size"):
        return world_size / given["sequence_parallel_size"]
    return world_size
