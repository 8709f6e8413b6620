"""What DeepSpeed 0.19.8 has and Tessera has not: asking for such a name says so, and any other name fails as ever.

MODULES holds the outermost names only, by the package that they lie in: what is inside a missing package is missing
with it. ATTRIBUTES holds names by the module where DeepSpeed defines them, or offers them for import. A name that
Tessera has by now may stay in the tables until someone takes it out: they are asked only when nothing is found.
"""

import dis

MODULES = {
    "deepspeed": """
        autotuning datastates inference io linear model_implementations module_inject nvme
    """,
    "deepspeed.accelerator": """
        hpu_accelerator klxpu_accelerator mlu_accelerator mps_accelerator npu_accelerator sdaa_accelerator
        supa_accelerator xpu_accelerator
    """,
    "deepspeed.checkpoint": """
        affine affine_transfer autoep_affine autoep_universal autoep_zero3_metadata deepspeed_checkpoint ds_to_universal
        reshape_3d_utils reshape_meg_2d reshape_utils universal_checkpoint zero_checkpoint
    """,
    "deepspeed.comm": """
        ccl mori pg_utils
    """,
    "deepspeed.compile": """
        backend constants custom_ops fx graph_param inductor init_sp init_tp init_z1_and_2 init_z3 input_storage
        list_schedule partitioner passes patch_compiled_func patch_fake_tensor profilers util z3_eager_fallback
    """,
    "deepspeed.compression": """
        basic_layer config constants scheduler utils
    """,
    "deepspeed.moe": """
        ep_count ep_experts ep_kernels ep_repack ep_router ep_tp_dispatch fused_expert_layout mappings
    """,
    "deepspeed.monitor": "utils",
    "deepspeed.ops": """
        compile deepspeed4science fp_quantizer gds pin_memory quantizer random_ltd transformer triton_ops
    """,
    "deepspeed.ops.adagrad": """
        cpu_adagrad
    """,
    "deepspeed.ops.adam": """
        multi_tensor_apply zenflow_cpu_adam zenflow_torch_adam
    """,
    "deepspeed.ops.lamb": """
        fused_lamb
    """,
    "deepspeed.ops.lion": """
        cpu_lion fused_lion multi_tensor_apply
    """,
    "deepspeed.ops.op_builder": """
        all_ops async_io cpu dc evoformer_attn fp_quantizer fused_adam fused_lamb fused_lion gds hpu
        inference_core_ops inference_cutlass_builder klxpu mlu mps npu pin_memory pin_memory_load quantizer ragged_ops
        ragged_utils random_ltd sdaa spatial_inference stochastic_transformer supa transformer transformer_inference
        utils xpu
    """,
    "deepspeed.profiling": "constants",
    "deepspeed.runtime": """
        chunked_cross_entropy comm domino hybrid_engine hybrid_engine_graph keep_in_fp32 python_gc rollout sparse_tensor
        state_dict_factory superoffload torch_autocast weight_quantizer
    """,
    "deepspeed.runtime.activation_checkpointing": """
        offload_activations
    """,
    "deepspeed.runtime.checkpoint_engine": """
        datastates_checkpoint_engine decoupled_checkpoint_engine fast_checkpoint_engine nebula_checkpoint_engine utils
    """,
    "deepspeed.runtime.data_pipeline.data_routing": """
        basic_layer scheduler utils
    """,
    "deepspeed.runtime.model_checkpointing": """
        constants data_parallel_writer_factory utils writer_factory
    """,
    "deepspeed.runtime.pipe": """
        dualpipev p2p
    """,
    "deepspeed.sequence": """
        auto_sp autosp_detector autosp_fusion autosp_vit cross_entropy
    """,
    "deepspeed.runtime.swap_tensor": """
        async_swapper optimizer_utils partitioned_optimizer_swapper partitioned_param_swapper
        pipelined_optimizer_swapper utils
    """,
    "deepspeed.runtime.tensor_parallel": """
        init_utils tp_manager
    """,
    "deepspeed.runtime.zenflow": """
        engine engine_stage3 zenflow_stage_1_and_2 zenflow_utils
    """,
    "deepspeed.runtime.zero": """
        contiguous_memory_allocator muon partitioned_param_coordinator partitioned_param_profiler utils
    """,
    "deepspeed.utils": """
        debug mixed_precision_linkage pin_memory pin_memory_tracker static_cache types zero_to_torch
    """,
}

ATTRIBUTES = {
    "deepspeed": """
        DeepSpeedHybridEngine DeepSpeedInferenceConfig DeepSpeedTransformerConfig DeepSpeedTransformerLayer
        DualPipeVEngine DualPipeVModule InferenceEngine default_inference_config init_inference load_ds_config
        merge_tp_model_init_into_config record_tp_model_init_args replace_transformer_layer
        resolve_per_head_muon_after_sharding set_autotp_mode set_optimizer_flags tp_model_init
    """,
    "deepspeed.checkpoint": """
        DeepSpeedCheckpoint SubparamShape ZeROCheckpoint enable_universal_checkpoint get_model_3d_descriptor merge_state
        model_3d_desc reshape_meg_2d_parallel
    """,
    "deepspeed.comm": """
        CCLBackend init_deepspeed_backend
    """,
    "deepspeed.compression.helper": """
        compression_preparation convert_conv1d_to_linear fix_compression generate_pruners is_module_compressible module_replacement
        register_on_step_begin rewrite_optimizer_step
    """,
    "deepspeed.comm.torch": """
        StagedWork all_gather_comm_off all_reduce_comm_off backward_comm_off broadcast_comm_off build_shm_op
        get_coalescing_manager reduce_comm_off reduce_scatter_comm_off stage_on_cpu
    """,
    "deepspeed.env_report": """
        ALL_OPS installed_cann_path installed_cann_version nvcc_version probe_is_compatible
    """,
    "deepspeed.launcher.runner": """
        Autotuner run_autotuning
    """,
    "deepspeed.moe.sharded_moe": """
        gumbel_rsample multiplicative_jitter top1gating top2gating topkgating
    """,
    "deepspeed.ops": """
        DeepSpeedTransformerConfig DeepSpeedTransformerLayer
    """,
    "deepspeed.ops.adam": """
        ZenFlowCPUAdam ZenFlowSelectiveAdamW ZenFlowSelectiveAdamW_stage3
    """,
    "deepspeed.ops.op_builder": """
        CCLCommBuilder DeepCompileBuilder EvoformerAttnBuilder FPQuantizerBuilder FlashAttentionBuilder GDSBuilder
        InferenceBuilder InferenceCoreBuilder InferenceCutlassBuilder PinMemoryBuilder
        QuantizerBuilder RaggedOpsBuilder RaggedUtilsBuilder RandomLTDBuilder ShareMemCommBuilder SpatialInferenceBuilder
        StochasticTransformerBuilder TransformerBuilder
    """,
    "deepspeed.pipe": """
        DualPipeVModule
    """,
    "deepspeed.runtime.activation_checkpointing.checkpointing": """
        CheckpointFunction detach_variable extract_tensors gather_partitioned_activations
        get_cpu_activations_for_backward get_offloaded_activations_for_backward get_partition_size get_partition_start
        get_partitioned_activations_for_backward is_activation_to_checkpoint merge_tensors partition_activations
        restore_offloaded_activations
    """,
    "deepspeed.runtime.checkpoint_engine": """
        DataStatesCheckpointEngine DecoupledCheckpointEngine FastCheckpointEngine create_checkpoint_engine
    """,
    "deepspeed.runtime.compiler": """
        compile_autoep_non_moe_regions
    """,
    "deepspeed.runtime.config": """
        DeepSpeedAutotuningConfig DeepSpeedDataStatesConfig WeightQuantConfig get_expert_parallel_config
    """,
    "deepspeed.runtime.fp16.loss_scaler": """
        LOSS_SCALE_PROFILE_DEFAULTS LossScaleConfig LossScaleProfile LossScaleProfileDefaults
    """,
    "deepspeed.runtime.sequence_parallel.ulysses_sp": """
        AutogradComputeMLP TiledLoss UlyssesSPFwdLossBwdWithLogits
    """,
    "deepspeed.sequence.layer": """
        apply_rotary_pos_emb post_all2all pre_all2all_fun single_all_to_all uneven_heads_all2all
    """,
    "deepspeed.runtime.engine.DeepSpeedEngine": """
        aio_config all_gather_scalar allreduce_and_copy allreduce_bucket allreduce_no_retain autotuning_enabled autotuning_end_profile_step
        autotuning_metric autotuning_metric_path autotuning_model_info_path autotuning_profile_model_info autotuning_start_profile_step
        buffered_allreduce_fallback checkpoint_writer_enabled clip_fp32_gradients collect_python_gc communication_data_type compile_autosp
        compile_autotp compile_zero_optimization_stage dynamic_loss_scale_args get_autosp_backend get_autotp_backend get_deepcompile_backend
        get_deepspeed_compile_backend get_optimizer_configuration get_wall_clock_timers is_deepcompile_active
        is_first_weights_partition_group is_iterable_style_dataset is_map_style_dataset load_moe_state_dict print_forward_breakdown
        random_ltd_initialize register_compile_pass sparse_all_gather sparse_allreduce sparse_allreduce_bucket sparse_allreduce_no_retain
        swap_tensor_config tensor_parallel_config torch_autocast_lower_precision_safe_modules uses_parallelization_pass_only zenflow_config
        zero_nvme_offload_optimizer zero_use_cpu_optimizer
    """,
    "deepspeed.runtime.pipe.schedule": """
        DualPipeVSchedule
    """,
    "deepspeed.runtime.utils": """
        OutputBackwardHookManager TLinear all_gather_dp_groups all_gather_into_tensor_dp_groups get_norm_with_moe_layers
        get_norm_with_moe_layers_fast is_transformers_cache offload_adam_states register_output_backward_hooks
        reload_adam_states
    """,
    "deepspeed.utils": """
        get_full_hp_grad get_full_hp_param get_hp_fragment_mapping lazy_init_hp_params_optimizer_state
        link_hp_params map_to_flat_opt_states set_full_hp_grad set_full_hp_param
    """,
    "deepspeed.utils.tensor_fragment": """
        get_full_hp_grad get_full_hp_param get_hp_fragment_mapping map_to_flat_opt_states
        set_full_hp_grad set_full_hp_param
    """,
    "deepspeed.utils.zero_to_fp32": """
        parse_model_states parse_optim_states to_torch_tensor
    """,
}


class NotInTesseraError(ModuleNotFoundError):
    """DeepSpeed has this module, or this name in a package, and Tessera does not have it yet."""


def sentence(full_name):
    return (f"{full_name} is not in Tessera yet (DeepSpeed 0.19.8 has it); "
            "ask for it in the project's issue tracker")


def is_missing(full_name):
    where, _, name = full_name.rpartition(".")
    return any(name in table.get(where, "").split() for table in (MODULES, ATTRIBUTES))


def missing_attribute(module, name, asking):
    """The error for a name that the module does not have; asking: the frame that wants it. Of an AttributeError `from module import name` makes an
    ImportError with words of its own."""
    full_name = f"{module}.{name}"
    if is_missing(full_name):
        is_import = dis.opname[asking.f_code.co_code[asking.f_lasti]] == "IMPORT_FROM"
        return (NotInTesseraError if is_import else AttributeError)(sentence(full_name))
    return AttributeError(f"module {module!r} has no attribute {name!r}")
