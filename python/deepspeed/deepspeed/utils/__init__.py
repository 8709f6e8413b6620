"""The logger, process groups, timers, and access to full tensors of partitioned parameters."""

from deepspeed._lazy import lazy_attributes
from deepspeed.utils.z3_leaf_module import z3_leaf_module  # noqa: F401  the function: once loaded, its module has the name

_FRAGMENTS = """fragment_address get_full_hp_grad get_full_hp_param get_hp_fragment_mapping map_to_flat_opt_states
    safe_get_full_fp32_param safe_get_full_grad safe_get_full_optimizer_state safe_get_local_fp32_param
    safe_get_local_grad safe_get_local_optimizer_state safe_set_full_fp32_param safe_set_full_grad
    safe_set_full_optimizer_state safe_set_local_fp32_param safe_set_local_grad safe_set_local_optimizer_state
    safe_update_full_grad_vectorized set_full_hp_grad set_full_hp_param""".split()

_LEAF_MODULES = """get_z3_leaf_modules set_z3_leaf_module set_z3_leaf_modules set_z3_leaf_modules_by_name
    set_z3_leaf_modules_by_suffix unset_z3_leaf_modules z3_leaf_parameter""".split()

_GROUPS = """get_data_parallel_group get_data_parallel_rank get_data_parallel_world_size get_model_parallel_group
    get_model_parallel_rank get_model_parallel_world_size get_tensor_model_parallel_group
    get_tensor_model_parallel_rank get_tensor_model_parallel_src_rank get_tensor_model_parallel_world_size initialize
    set_tensor_model_parallel_rank set_tensor_model_parallel_world_size""".split()

__getattr__ = lazy_attributes(__name__, {
    "DeprecatedException": "deepspeed.utils.exceptions",
    "OnDevice": "deepspeed.utils.init_on_device",
    "RepeatingLoader": "deepspeed.runtime.dataloader",
    "bwc_pipeline_parallel_world_size": "deepspeed.utils.bwc",
    "bwc_tensor_model_parallel_world_size": "deepspeed.utils.bwc",
    "get_accelerator": "deepspeed.accelerator",
    "get_caller_func": "deepspeed.utils.comms_logging",
    "get_numactl_cmd": "deepspeed.utils.numa",
    "instrument_w_nvtx": "deepspeed.utils.nvtx",
    "log_dist": "deepspeed.utils.logging",
    "log_dist_once": "deepspeed.utils.logging",
    "logger": "deepspeed.utils.logging",
    "set_log_level_from_string": "deepspeed.utils.logging",
    **{name: "deepspeed.utils.tensor_fragment" for name in _FRAGMENTS},
    **{name: "deepspeed.utils.z3_leaf_module" for name in _LEAF_MODULES},
    **{name: "deepspeed.utils.groups" for name in _GROUPS},
})
