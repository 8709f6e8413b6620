"""Small parts that clients of DeepSpeed use by name: norms and clipping, partitions, memory, seeds, moving tensors."""

import math
import os
import random
from math import inf  # noqa: F401

import torch

from deepspeed import comm as dist
from deepspeed import _names
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.constants import PIPE_REPLICATED  # noqa: F401
from deepspeed.utils import groups
from deepspeed.utils.bwc import bwc_tensor_model_parallel_rank, bwc_tensor_model_parallel_world_size  # noqa: F401
from deepspeed.utils.logging import logger
from tessera import gradient_norm
from tessera.gradient_norm import (  # noqa: F401
    has_overflow as has_inf_or_nan,
    is_expert as is_moe_param,
    is_model_parallel as is_model_parallel_parameter,
)
from tessera.layer_partition import balanced_bounds, uniform_bounds
from tessera.nested_tensors import bytes_of as get_tensor_bytes, map_tensors, same
from tessera.overflow_check import OverflowCheck
from tessera.partitioned_tensor import PartitionedTensor  # noqa: F401

_names.serve(__name__)


class DummyOptim:
    """Only param_groups: stands for an optimizer where there is none."""

    def __init__(self, params):
        self.param_groups = [{"params": params}]


class noop_context:
    def __enter__(self):
        return None

    def __exit__(self, exc_type, exc_value, traceback):
        return None


def noop_decorator(func):
    return func


def call_to_str(base, *args, **kwargs):
    """call_to_str("f", 1, x="y") is "f(1, x='y')"."""
    given = [repr(arg) for arg in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"{base}({', '.join(given)})"


def ensure_directory_exists(filename):
    """Makes the folder that the file is to lie in."""
    os.makedirs(os.path.dirname(filename), exist_ok=True)


def set_random_seed(seed):
    import numpy
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def get_only_unique_item(items):
    found = set(items)
    if len(found) != 1:
        raise RuntimeError(f"expected one value, the same everywhere, but found {sorted(found, key=str)}")
    return found.pop()


# Partitions

def prefix_sum_inc(weights):
    """[1, 2, 3] -> [1, 3, 6]."""
    sums = []
    for weight in weights:
        sums.append(weight + (sums[-1] if sums else 0))
    return sums


def partition_uniform(num_items, num_parts):
    return uniform_bounds(num_items, num_parts)


def partition_balanced(weights, num_parts):
    return balanced_bounds(weights, num_parts)


# Norms and clipping

def _model_parallel_group(mpu):
    return mpu.get_model_parallel_group() if mpu is not None else None


def clip_grad_norm_(parameters, max_norm, norm_type=2, mpu=None):
    """torch.nn.utils.clip_grad_norm_ over the ranks of a model; the norm is the mean over the data-parallel ranks, so
    that all of them clip alike. Returns the norm before clipping."""
    parameters = [parameters] if torch.is_tensor(parameters) else list(parameters)
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in parameters]
    norm = gradient_norm.norm_of_parameters(gradients, parameters, float(norm_type), _model_parallel_group(mpu))
    if dist.is_initialized():
        group = groups._get_data_parallel_group()
        norm = norm.to(get_accelerator().current_device_name()) / dist.get_world_size(group=group)
        dist.all_reduce(norm, group=group)
    gradient_norm.scale_down(gradients, norm, float(max_norm))
    return norm


def get_weight_norm(parameters, norm_type=2, mpu=None):
    """The norm of the tensors over the model-parallel ranks, a float; -1 if it is not finite."""
    tensors = [parameters] if torch.is_tensor(parameters) else list(parameters)
    norm = gradient_norm.norm_of_parameters([tensor.data for tensor in tensors], tensors, float(norm_type),
                                            _model_parallel_group(mpu))
    return gradient_norm.number_or_infinite(norm)


def get_flattened_grad_norm(parameters, norm_type=2, mpu=None, grad_norm_mask=None):
    """As get_weight_norm, of the parameters' gradients."""
    assert grad_norm_mask is None, "get_flattened_grad_norm with a grad_norm_mask is not in Tessera yet"
    parameters = [parameters] if torch.is_tensor(parameters) else list(parameters)
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    norm = gradient_norm.norm_of_parameters([parameter.grad for parameter in parameters], parameters,
                                            float(norm_type), _model_parallel_group(mpu))
    return gradient_norm.number_or_infinite(norm)


def get_global_norm(norm_list):
    """The L2 norm of all from the L2 norms of the parts."""
    return math.sqrt(sum(float(norm) ** 2 for norm in norm_list))


def get_global_norm_of_tensors(input_tensors, norm_type=2, mpu=None, moe_ep_group=None):
    norm = gradient_norm.local_norm(input_tensors, float(norm_type))
    for group in (_model_parallel_group(mpu), moe_ep_group):
        norm = gradient_norm.summed_over(norm, float(norm_type), group)
    return norm


def clip_tensors_by_global_norm(input_tensors, max_norm=1.0, global_norm=None, mpu=None, eps=1e-6):
    """Scales the tensors in place; returns their norm before."""
    if global_norm is None:
        global_norm = get_global_norm_of_tensors(input_tensors, mpu=mpu)
    gradient_norm.scale_down(input_tensors, torch.as_tensor(global_norm), max_norm, eps)
    return global_norm


def combine_grad_norm_groups(norm_groups, norm_type=2):
    return torch.linalg.vector_norm(torch.stack([torch.as_tensor(float(norm)) for norm in norm_groups]), norm_type)


def is_invalid_grad_norm(norm):
    return gradient_norm.number_or_infinite(norm) == gradient_norm.INFINITE


def get_grad_zeros(parameters, mpu=None):
    """How many values of the gradients are zero."""
    zeros = sum(float((parameter.grad == 0).sum()) for parameter in parameters if parameter.grad is not None)
    if mpu is None:
        return zeros
    total = torch.tensor([zeros], device=get_accelerator().current_device_name())
    dist.all_reduce(total, group=mpu.get_model_parallel_group())
    return float(total.item())


class CheckOverflow:
    """Whether any rank has a non-finite gradient."""

    def __init__(self, param_groups=None, mpu=None, zero_reduce_scatter=False, deepspeed=None):
        self.mpu, self.deepspeed, self.zero_reduce_scatter = mpu, deepspeed, zero_reduce_scatter
        self.params = [parameter for group in param_groups or [] for parameter in group]
        self._check = OverflowCheck(self.params, groups._get_max_expert_parallel_group, mpu, zero_reduce_scatter)
        self.has_moe_params = self._check.has_moe_params

    def check_using_norm(self, norm_group, reduce_overflow=True):
        """By norms that get_weight_norm returned."""
        return self._check.in_norms(norm_group, on_all_ranks=reduce_overflow)

    def check(self, param_groups=None):
        if param_groups is None:
            return self.has_overflow(self.params)
        assert param_groups, "check() needs parameter groups, or None for the ones the object was created with"
        return self.has_overflow([parameter for group in param_groups for parameter in group])

    def has_overflow_serial(self, params):
        return self._check.in_local_gradients(params)

    def has_overflow(self, params, has_moe_params=None):
        return self._check.in_gradients(params, self.has_moe_params if has_moe_params is None else has_moe_params)


# Parameters

def is_optimized_parameter(param):
    return param.requires_grad


def filter_empty_parameters(params):
    """Drops parameters without elements; takes parameters, or groups of them."""
    if isinstance(params, dict):
        return {**params, "params": filter_empty_parameters(params["params"])}
    if not isinstance(params, (list, tuple)):
        params = list(params)
    if params and isinstance(params[0], dict):
        return [filter_empty_parameters(group) for group in params]
    return [param for param in params if not hasattr(param, "numel") or param.numel() > 0 or hasattr(param, "ds_id")]


def get_inactive_params(param_list):
    """Partitioned parameters that are not gathered now."""
    return [param for param in param_list if getattr(getattr(param, "ds_status", None), "name", "") == "NOT_AVAILABLE"]


def count_used_parameters_in_backward(parameters):
    """How many of the parameters the backward pass that runs now will give a gradient. Only from inside of one."""
    with torch.enable_grad():
        nodes = [torch.autograd.graph._get_grad_fn_or_grad_acc(param) for param in parameters if param.requires_grad]
    return sum(torch._C._will_engine_execute_node(node) for node in nodes)


def check_internal_apis_for_count_used_parameters():
    return hasattr(torch.autograd.graph, "_get_grad_fn_or_grad_acc") and hasattr(torch._C, "_will_engine_execute_node")


def maybe_loss_for_backward(value):
    """Whether it is a scalar that backward() could start from."""
    return torch.is_tensor(value) and value.numel() == 1 and value.grad_fn is not None and value.dim() == 0


# Moving and comparing tensors

def copy_to_device(item, device, criterion_func):
    """A copy on the device of each tensor in lists, tuples and dicts for which criterion_func holds."""
    return map_tensors(item, lambda tensor: tensor.to(device, copy=True) if criterion_func(tensor) else tensor)


def move_to_device(item, device, criterion_func=None):
    return map_tensors(item, lambda tensor: tensor.to(device) if criterion_func is None or criterion_func(tensor)
                       else tensor)


def compare_tensors_in_structures(inputs1, inputs2):
    return same(inputs1, inputs2)


def mask_nan_or_inf_with_val_inplace(input, device=None, val=-1.0):
    """Puts `val` where the tensor is not finite."""
    input.masked_fill_(~torch.isfinite(input), val)


def align_dense_tensors(tensor_list, alignment):
    """The tensors, and one of zeros after them if their elements are no multiple of `alignment`."""
    missing = -sum(tensor.numel() for tensor in tensor_list) % alignment
    if missing == 0:
        return list(tensor_list)
    return [*tensor_list, tensor_list[0].new_zeros(missing)]


# Memory

torch_memory_reserved = get_accelerator().memory_reserved
torch_max_memory_reserved = get_accelerator().max_memory_reserved


def empty_cache():
    get_accelerator().empty_cache()


def get_ma_status():
    """Bytes in use on the device, on rank 0; 0 elsewhere."""
    if dist.is_initialized() and dist.get_rank() != 0:
        return 0
    return get_accelerator().memory_allocated()


def see_memory_usage(message, force=False):
    """Writes what the device and the host have in use, on rank 0; only with force."""
    if not force or (dist.is_initialized() and dist.get_rank() != 0):
        return
    device = get_accelerator()
    used = device.total_memory() - device.available_memory() if device.device_name() == "cpu" else _host_bytes_used()
    in_gb = {"MA": device.memory_allocated(), "Max_MA": device.max_memory_allocated(), "CA": device.memory_reserved(),
             "Max_CA": device.max_memory_reserved(), "CPU Virtual Memory: used": used}
    print(message, *(f"{name} {size / 2**30:.2f} GB" for name, size in in_gb.items()), sep="\n  ")
    device.reset_peak_memory_stats()


def _host_bytes_used():
    page = os.sysconf("SC_PAGE_SIZE")
    return page * (os.sysconf("SC_PHYS_PAGES") - os.sysconf("SC_AVPHYS_PAGES"))


def memory_status(msg, print_rank=-1, reset_max=False):
    rank = dist.get_rank() if dist.is_initialized() else 0
    if print_rank not in (-1, rank):
        return
    device = get_accelerator()
    if reset_max:
        device.reset_peak_memory_stats()
    print(f"RANK={rank} MEMSTATS {msg} device={device.current_device_name()} "
          f"current alloc={device.memory_allocated() / 2**30:.4f}GB max={device.max_memory_allocated() / 2**30:.4f}GB")


def get_checkpoint_folder_size(save_dir, tag, local_rank=None):
    """Bytes of the files in a checkpoint, logged and returned."""
    total = _get_folder_size(os.path.join(save_dir, str(tag)))
    logger.info(f"checkpoint {tag} has {total / 2**30:.2f} GB")
    return total


def _get_folder_size(folder):
    return sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(folder) for name in names)
