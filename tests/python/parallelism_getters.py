"""Getters of model-parallel units (Megatron's, Megatron-DeepSpeed's, GPT-NeoX', Ulysses' and DeepSpeed's grid's), and the
word for what each counts."""

GETTERS = {
    "get_model_parallel_world_size": "model",
    "get_tensor_model_parallel_world_size": "tensor",
    "get_tensor_parallel_world_size": "tensor",
    "get_slice_parallel_world_size": "tensor",
    "get_pipe_parallel_world_size": "pipeline",
    "get_pipeline_model_parallel_world_size": "pipeline",
    "get_context_parallel_world_size": "context",
    "get_expert_model_parallel_world_size": "expert",
    "get_expert_tensor_parallel_world_size": "expert tensor",
    "get_expert_parallel_world_size": "expert",
}
