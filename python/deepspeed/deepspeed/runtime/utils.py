"""Small parts that clients of DeepSpeed use by name: norms and clipping, partitions, memory, seeds, moving tensors."""

import itertools
import math
import os
import random
from math import inf

import torch

from deepspeed import comm as dist
from deepspeed import _names
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.constants import PIPE_REPLICATED  # noqa: F401
from deepspeed.utils import groups
from deepspeed.utils.bwc import bwc_tensor_model_parallel_rank, bwc_tensor_model_parallel_world_size  # noqa: F401
from deepspeed.utils.logging import logger
from tessera import _core
from tessera.expert_parameters import is_expert as is_moe_param
from tessera.nested_tensors import bytes_of as get_tensor_bytes, map_tensors, same
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
    return list(itertools.accumulate(weights))


def partition_uniform(num_items, num_parts):
    return _core.uniform_bounds(num_items, num_parts)


def partition_balanced(weights, num_parts):
    return _core.balanced_bounds(weights, num_parts)


# Norms, clipping, and what is not finite. Tensors that are expert-parallel or model-parallel are different on each rank of their
# group, all others are equal there. A norm that is not finite is -1 where DeepSpeed hands it on as a number.

_INFINITE = -1.0


def is_model_parallel_parameter(p):
    return bool(getattr(p, "model_parallel", False) or getattr(p, "tensor_model_parallel", False))


def has_inf_or_nan(tensor):
    """A zero-dimensional boolean tensor."""
    return ~torch.isfinite(tensor).all()


def _list_of(tensors):
    return [tensors] if torch.is_tensor(tensors) else list(tensors)


def _with_gradients(parameters):
    return [parameter for parameter in _list_of(parameters) if parameter.grad is not None]


def _local_norm(tensors, norm_type):
    """Of all the tensors together; a zero-dimensional float32 tensor on the device of the first."""
    tensors = [tensor for tensor in tensors if tensor is not None and tensor.numel() > 0]
    if not tensors:
        return torch.zeros(())
    norms = torch.stack([torch.linalg.vector_norm(tensor.detach(), norm_type, dtype=torch.float32).to(tensors[0].device)
                         for tensor in tensors])
    return torch.linalg.vector_norm(norms, norm_type)


def _norm_over(group, norm, norm_type):
    """Of what all ranks of the group hold; as it is without a group."""
    if group is None:
        return norm
    total = norm.clone() if norm_type == inf else norm ** norm_type
    dist.all_reduce(total, op=dist.ReduceOp.MAX if norm_type == inf else dist.ReduceOp.SUM, group=group)
    return total if norm_type == inf else total ** (1.0 / norm_type)


def _model_parallel_group(mpu):
    return mpu.get_model_parallel_group() if mpu is not None else None


def _norm(tensors, owners, norm_type, mpu):
    """`owners` are the parameters of the tensors: what is model-parallel counts on every rank of the group, what is
    replicated there once."""
    split = [], []
    for tensor, owner in zip(tensors, owners):
        split[is_model_parallel_parameter(owner)].append(tensor)
    everywhere, parts = (_local_norm(part, norm_type) for part in split)
    parts = _norm_over(_model_parallel_group(mpu), parts.to(everywhere.device), norm_type)
    return torch.linalg.vector_norm(torch.stack([parts, everywhere]), norm_type)


def _number_or_infinite(norm):
    value = float(norm)
    return value if math.isfinite(value) else _INFINITE


def _scale_down(tensors, norm, max_norm, eps=1e-6):
    factor = _core.clip_factor(norm, max_norm, eps)
    for tensor in tensors:
        tensor.detach().mul_(factor.to(tensor.device))


def clip_grad_norm_(parameters, max_norm, norm_type=2, mpu=None):
    """torch.nn.utils.clip_grad_norm_ over the ranks of a model; the norm is the mean over the data-parallel ranks, so
    that all of them clip alike. Returns the norm before clipping."""
    parameters = _with_gradients(parameters)
    gradients = [parameter.grad for parameter in parameters]
    norm = _norm(gradients, parameters, float(norm_type), mpu)
    if dist.is_initialized():
        group = groups._get_data_parallel_group()
        norm = norm.to(get_accelerator().current_device_name()) / dist.get_world_size(group=group)
        dist.all_reduce(norm, group=group)
    _scale_down(gradients, norm, float(max_norm))
    return norm


def get_weight_norm(parameters, norm_type=2, mpu=None):
    """The norm of the tensors over the model-parallel ranks, a float; -1 if it is not finite."""
    tensors = _list_of(parameters)
    return _number_or_infinite(_norm([tensor.data for tensor in tensors], tensors, float(norm_type), mpu))


def get_flattened_grad_norm(parameters, norm_type=2, mpu=None, grad_norm_mask=None):
    """As get_weight_norm, of the parameters' gradients."""
    assert grad_norm_mask is None, "get_flattened_grad_norm with a grad_norm_mask is not in Tessera yet"
    parameters = _with_gradients(parameters)
    return _number_or_infinite(_norm([parameter.grad for parameter in parameters], parameters, float(norm_type), mpu))


def get_global_norm(norm_list):
    """The L2 norm of all from the L2 norms of the parts."""
    return math.sqrt(sum(float(norm) ** 2 for norm in norm_list))


def get_global_norm_of_tensors(input_tensors, norm_type=2, mpu=None, moe_ep_group=None):
    norm = _local_norm(input_tensors, float(norm_type))
    for group in (_model_parallel_group(mpu), moe_ep_group):
        norm = _norm_over(group, norm, float(norm_type))
    return norm


def clip_tensors_by_global_norm(input_tensors, max_norm=1.0, global_norm=None, mpu=None, eps=1e-6):
    """Scales the tensors in place; returns their norm before."""
    if global_norm is None:
        global_norm = get_global_norm_of_tensors(input_tensors, mpu=mpu)
    _scale_down(input_tensors, torch.as_tensor(global_norm), max_norm, eps)
    return global_norm


def combine_grad_norm_groups(norm_groups, norm_type=2):
    return torch.linalg.vector_norm(torch.tensor([float(norm) for norm in norm_groups]), norm_type)


def is_invalid_grad_norm(norm):
    return _number_or_infinite(norm) == _INFINITE


def get_grad_zeros(parameters, mpu=None):
    """How many values of the gradients are zero."""
    zeros = sum(float((parameter.grad == 0).sum()) for parameter in parameters if parameter.grad is not None)
    if mpu is None:
        return zeros
    total = torch.tensor([zeros], device=get_accelerator().current_device_name())
    dist.all_reduce(total, group=mpu.get_model_parallel_group())
    return float(total.item())


class CheckOverflow:
    """Whether any rank has a non-finite gradient. Who has to agree depends on what is spread: ranks of an expert group for
    experts, of the model-parallel group for tensor parallelism, all ranks where each has reduced only its own part."""

    def __init__(self, param_groups=None, mpu=None, zero_reduce_scatter=False, deepspeed=None):
        self.mpu, self.deepspeed, self.zero_reduce_scatter = mpu, deepspeed, zero_reduce_scatter
        self.params = [parameter for group in param_groups or [] for parameter in group]
        self.has_moe_params = any(map(is_moe_param, self.params))

    def check_using_norm(self, norm_group, reduce_overflow=True):
        """By norms that get_weight_norm returned."""
        found = any(norm == _INFINITE or not torch.isfinite(torch.as_tensor(norm)).all() for norm in norm_group)
        flag = self._flag(found, self.params, self.has_moe_params)
        if reduce_overflow and dist.is_initialized():
            self._agree(flag, None)
        return bool(flag.item())

    def check(self, param_groups=None):
        if param_groups is None:
            return self.has_overflow(self.params)
        assert param_groups, "check() needs parameter groups, or None for the ones the object was created with"
        return self.has_overflow([parameter for group in param_groups for parameter in group])

    def has_overflow_serial(self, params):
        return any(bool(has_inf_or_nan(parameter.grad)) for parameter in _with_gradients(params))

    def has_overflow(self, params, has_moe_params=None):
        flag = self._flag(self.has_overflow_serial(params), params,
                          self.has_moe_params if has_moe_params is None else has_moe_params)
        if self.zero_reduce_scatter:
            self._agree(flag, None)
        elif self.mpu is not None:
            self._agree(flag, self.mpu.get_model_parallel_group())
        return bool(flag.item())

    def _flag(self, found, params, has_experts):
        """Agreed on by the ranks of the expert group."""
        flag = torch.tensor([float(found)], device=params[0].device if params else "cpu")
        if has_experts:
            self._agree(flag, groups._get_max_expert_parallel_group())
        return flag

    @staticmethod
    def _agree(flag, group):
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)


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
