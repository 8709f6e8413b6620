"""The engine's getters of which each says what one key of the configuration comes to."""

_UNDER_THE_KEYS_NAME = """
    managed_gradient_accumulation gradient_clipping gradient_predivide_factor steps_per_print wall_clock_breakdown memory_breakdown dump_state
    dataloader_drop_last zero_allow_untested_optimizer zero_force_ds_cpu_optimizer log_level use_data_before_expert_parallelism
""".split()
_OF_ZERO = """
    reduce_scatter overlap_comm reduce_bucket_size allgather_bucket_size sub_group_size contiguous_gradients load_from_fp32_weights
    elastic_checkpoint compute_grad_norm legacy_stage1 ignore_unused_parameters save_muon_momentum_buffer_in_memory allgather_partitions
    round_robin_gradients parameter_alignment quantized_weights quantized_gradients quantized_nontrainable_weights log_trace_cache_warnings
""".split()
_OF_STAGE_3 = """
    max_live_parameters max_reuse_distance prefetch_bucket_size module_granularity_threshold param_persistence_threshold
    model_persistence_threshold allgather_sequential gather_16bit_weights_on_model_save
""".split()
_OF_THE_PROFILER = "enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file".split()
_OFFLOAD = "zero_optimization.offload_optimizer"
_PATHS = {
    **{name: name for name in _UNDER_THE_KEYS_NAME},
    **{f"zero_{key}": f"zero_optimization.{key if 'quantized' not in key else f'zero_{key}'}" for key in _OF_ZERO},
    **{f"zero_{key}": f"zero_optimization.stage3_{key}" for key in _OF_STAGE_3},
    **{f"flops_profiler_{key}": f"flops_profiler.{key}" for key in _OF_THE_PROFILER},
    "zero_hpz_partition_size": "zero_optimization.zero_hpz_partition_size",
    "zero_multi_rank_bucket_allreduce": "zero_optimization.use_multi_rank_bucket_allreduce",
    "zero_partial_offload": f"{_OFFLOAD}.ratio",
    "super_offload": f"{_OFFLOAD}.super_offload",
    "cpuadam_cores_perc": f"{_OFFLOAD}.cpuadam_cores_perc",
    "is_sanity_checks_enabled": "zero_optimization.enable_sanity_checks",
    "load_universal_checkpoint": "checkpoint.load_universal",
    "use_node_local_storage": "checkpoint.use_node_local_storage",
    "checkpoint_serialization_enabled": "checkpoint.checkpoint_serialization",
    "optimizer_legacy_fusion": "optimizer.legacy_fusion",
    "autotp_size": "tensor_parallel.autotp_size",
    "fp16_master_weights_and_gradients": "fp16.fp16_master_weights_and_grads",
    "bf16_master_weights_and_gradients": "bf16.bf16_master_weights_and_grads",
    "bf16_optimizer_states": "bf16.bf16_optimizer_states",
    "data_efficiency_enabled": "data_efficiency.enabled",
    "data_sampling_enabled": "data_efficiency.data_sampling.enabled",
    "curriculum_learning_enabled": "data_efficiency.data_sampling.curriculum_learning.enabled",
    "random_ltd_enabled": "data_efficiency.data_routing.random_ltd.enabled",
    "is_deepcompile_enabled": "compile.deepcompile",
}


class KeyGetters:
    """`_values`: by the key's path."""

    def _value(self, path):
        return self._values.get(path)


def _getter(name, path):
    def get(self):
        return self._value(path)

    get.__name__, get.__qualname__, get.__doc__ = name, f"KeyGetters.{name}", f"The value of {path}."
    return get


for _name, _path in _PATHS.items():
    setattr(KeyGetters, _name, _getter(_name, _path))
