"""Estimates of the memory that parameters, gradients and optimizer state take, with DeepSpeed's formulas (tessera/plan/deepspeed_estimates.h).

`tessera estimate` says what Tessera itself takes.
"""

from tessera import _core


def model_to_params(model):
    """(parameters in all, of which shared ones count once; those that the module has itself which has most)."""
    total = sum({parameter.data_ptr(): parameter.numel() for parameter in model.parameters()}.values())
    return total, max(sum(parameter.numel() for parameter in module.parameters(recurse=False)) for module in model.modules())


def _input(total_params, largest_layer_params, num_gpus_per_node, num_nodes, additional_buffer_factor):
    return _core.DeepSpeedInput(params=total_params, largest_layer_params=largest_layer_params, nodes=num_nodes, gpus_per_node=num_gpus_per_node,
                                buffer_factor=additional_buffer_factor)


def estimate_zero2_model_states_mem_needs(total_params, num_gpus_per_node=1, num_nodes=1, cpu_offload=True, additional_buffer_factor=1.5):
    """(bytes on the CPU of a node, bytes on each GPU)."""
    rows = _core.deepspeed_rows(2, _input(total_params, 0, num_gpus_per_node, num_nodes, additional_buffer_factor))
    row = next(row for row in rows if row.offload_optimizer == bool(cpu_offload))
    return row.cpu_bytes, row.gpu_bytes


def estimate_zero2_model_states_mem_needs_all_live(model, num_gpus_per_node=1, num_nodes=1, additional_buffer_factor=1.5):
    estimate_zero2_model_states_mem_needs_all_cold(model_to_params(model)[0], num_gpus_per_node, num_nodes, additional_buffer_factor)


def estimate_zero2_model_states_mem_needs_all_cold(total_params, num_gpus_per_node=1, num_nodes=1, additional_buffer_factor=1.5):
    print(_core.deepspeed_table(2, _input(total_params, 0, num_gpus_per_node, num_nodes, additional_buffer_factor)), end="")


def estimate_zero3_model_states_mem_needs(total_params, largest_layer_params, num_gpus_per_node=1, num_nodes=1, cpu_offload=True,
                                          cpu_offload_params=True, zero_init=True, additional_buffer_factor=1.5):
    """(bytes on the CPU of a node, bytes on each GPU, bytes of the largest layer)."""
    rows = _core.deepspeed_rows(3, _input(total_params, largest_layer_params, num_gpus_per_node, num_nodes, additional_buffer_factor))
    wanted = (bool(cpu_offload), bool(cpu_offload and cpu_offload_params), bool(zero_init))
    row = next(row for row in rows if (row.offload_optimizer, row.offload_param, row.zero_init) == wanted)
    return row.cpu_bytes, row.gpu_bytes, 4 * largest_layer_params


def estimate_zero3_model_states_mem_needs_all_live(model, num_gpus_per_node=1, num_nodes=1, additional_buffer_factor=1.5):
    estimate_zero3_model_states_mem_needs_all_cold(*model_to_params(model), num_gpus_per_node, num_nodes, additional_buffer_factor)


def estimate_zero3_model_states_mem_needs_all_cold(total_params, largest_layer_params, num_gpus_per_node=1, num_nodes=1,
                                                   additional_buffer_factor=1.5):
    print(_core.deepspeed_table(3, _input(total_params, largest_layer_params, num_gpus_per_node, num_nodes, additional_buffer_factor)), end="")
