"""The process groups of data, tensor, sequence and expert parallelism.

Who splits the ranks is `mpu`, a model-parallel unit of the program (Megatron's, or Ulysses'), or `mesh_device`, a torch
DeviceMesh with the dimensions data_parallel and sequence_parallel or tensor_parallel; without either, all ranks are
data-parallel. The engine sets both. Expert groups are made by _create_expert_and_data_parallel, one set a size.
"""

from deepspeed import comm as dist
from deepspeed.utils.bwc import (
    bwc_pipeline_parallel_world_size,
    bwc_tensor_model_parallel_group,
    bwc_tensor_model_parallel_rank,
    bwc_tensor_model_parallel_world_size,
)
from tessera.expert_groups import expert_parallel_ranks

mpu = None
mesh_device = None
expert_tensor_parallel_world_size = 1

_WORLD_GROUP = None
_DATA_PARALLEL_GROUP = None
_MODEL_PARALLEL_GROUP = None
_TENSOR_MODEL_PARALLEL_GROUP = None
_ZERO_PARAM_INTRA_PARALLEL_GROUP = None
_MPU_TENSOR_MODEL_PARALLEL_WORLD_SIZE = None
_MPU_TENSOR_MODEL_PARALLEL_RANK = None

# By the group's name, "ep_size_<ranks that hold all experts>".
_EXPERT_PARALLEL_GROUP = {}
_EXPERT_PARALLEL_GROUP_RANKS = {}
_EXPERT_DATA_PARALLEL_GROUP = {}
_EXPERT_DATA_PARALLEL_GROUP_RANKS = {}
_ALL_TO_ALL_GROUP = {}


class DeprecatedException(Exception):
    """A call that has been replaced; the message names its successor."""


def initialize(ep_size=1, mpu=None):
    raise DeprecatedException("groups.initialize has been replaced: pass ep_size to deepspeed.moe.layer.MoE, and mpu to deepspeed.initialize")


def _ensure_divisibility(numerator, denominator):
    assert numerator % denominator == 0, f"{numerator} is not divisible by {denominator}"


def _of_mesh(dimension):
    """The group along a dimension of the mesh, or None where there is no such dimension."""
    names = (mesh_device.mesh_dim_names or ()) if mesh_device is not None else ()
    return mesh_device.get_group(mesh_dim=dimension) if dimension in names else None


def _of_mpu(method):
    return getattr(mpu, method)() if hasattr(mpu, method) else None


# Data parallel

def _clone_world_group():
    global _WORLD_GROUP
    if _WORLD_GROUP is None:
        _WORLD_GROUP = dist.new_group(ranks=list(range(dist.get_world_size())))
    return _WORLD_GROUP


def _get_data_parallel_group():
    for group in (_of_mesh("data_parallel"), _of_mpu("get_data_parallel_group")):
        if group is not None:
            return group
    return dist.get_world_group()


def _get_data_parallel_group_ranks():
    return dist.get_all_ranks_from_group(_get_data_parallel_group())


def _get_data_parallel_world_size():
    if _of_mesh("data_parallel") is None and hasattr(mpu, "get_data_parallel_world_size"):
        return mpu.get_data_parallel_world_size()
    return dist.get_world_size(group=_get_data_parallel_group())


def _get_data_parallel_rank():
    return dist.get_rank(group=_get_data_parallel_group())


def _get_broadcast_src_rank():
    """The global rank whose parameters the data-parallel group starts with."""
    return dist.get_global_rank(_get_sequence_data_parallel_group(), 0)


get_data_parallel_group = _get_data_parallel_group
get_data_parallel_rank = _get_data_parallel_rank
get_data_parallel_world_size = _get_data_parallel_world_size


# Sequence parallel

def _get_sequence_parallel_group():
    for group in (_of_mesh("sequence_parallel"), _of_mpu("get_sequence_parallel_group")):
        if group is not None:
            return group
    raise KeyError("there is no sequence-parallel group: pass deepspeed.initialize an mpu that has one, or "
                   "mesh_param=(data_parallel_size, sequence_parallel_size)")


def _has_sequence_parallel():
    return _of_mesh("sequence_parallel") is not None or hasattr(mpu, "get_sequence_parallel_group")


def _get_sequence_parallel_world_size():
    if not _has_sequence_parallel():
        return 1
    if _of_mesh("sequence_parallel") is None and hasattr(mpu, "get_sequence_parallel_world_size"):
        return mpu.get_sequence_parallel_world_size()
    return dist.get_world_size(group=_get_sequence_parallel_group())


def _get_sequence_parallel_rank():
    return dist.get_rank(group=_get_sequence_parallel_group()) if _has_sequence_parallel() else 0


def _get_sequence_data_parallel_group():
    """The ranks that share one set of parameters: with sequence parallelism, those of all parts of a sequence, too."""
    group = _of_mpu("get_sequence_data_parallel_group")
    if group is not None:
        return group
    return dist.get_world_group() if _has_sequence_parallel() else _get_data_parallel_group()


def _get_sequence_data_parallel_world_size():
    return dist.get_world_size(group=_get_sequence_data_parallel_group())


def _get_sequence_data_parallel_rank():
    return dist.get_rank(group=_get_sequence_data_parallel_group())


# Tensor (model) parallel

def _get_model_parallel_world_size():
    return bwc_tensor_model_parallel_world_size(mpu)


def _create_model_parallel(model_parallel_size_):
    """(data-parallel group, model-parallel group) of this rank: consecutive ranks hold one model."""
    global _DATA_PARALLEL_GROUP, _MODEL_PARALLEL_GROUP
    world_size, rank = dist.get_world_size(), dist.get_rank()
    size = min(model_parallel_size_, world_size)
    _ensure_divisibility(world_size, size)
    for start in range(size):
        ranks = list(range(start, world_size, size))
        group = dist.new_group(ranks)
        _DATA_PARALLEL_GROUP = group if rank in ranks else _DATA_PARALLEL_GROUP
    for start in range(0, world_size, size):
        ranks = list(range(start, start + size))
        group = dist.new_group(ranks)
        _MODEL_PARALLEL_GROUP = group if rank in ranks else _MODEL_PARALLEL_GROUP
    return _DATA_PARALLEL_GROUP, _MODEL_PARALLEL_GROUP


def _init_tp_mesh_device(tensor_model_parallel_size=1, data_parallel_size=None):
    """(data-parallel group, tensor-parallel group) of this rank, on a mesh that `mesh_device` keeps."""
    global mesh_device, _DATA_PARALLEL_GROUP, _TENSOR_MODEL_PARALLEL_GROUP
    if _DATA_PARALLEL_GROUP is None:
        data = data_parallel_size or dist.get_world_size() // tensor_model_parallel_size
        mesh_device = dist.initialize_mesh_device((data, tensor_model_parallel_size),
                                                  ("data_parallel", "tensor_parallel"))
        _DATA_PARALLEL_GROUP = mesh_device.get_group(mesh_dim="data_parallel")
        _TENSOR_MODEL_PARALLEL_GROUP = mesh_device.get_group(mesh_dim="tensor_parallel")
    return _DATA_PARALLEL_GROUP, _TENSOR_MODEL_PARALLEL_GROUP


def get_tensor_model_parallel_group():
    group = _TENSOR_MODEL_PARALLEL_GROUP or bwc_tensor_model_parallel_group(mpu)
    assert group is not None, "there is no tensor-parallel group: pass deepspeed.initialize an mpu that has one"
    return group


def get_tensor_model_parallel_world_size():
    if _MPU_TENSOR_MODEL_PARALLEL_WORLD_SIZE is not None:
        return _MPU_TENSOR_MODEL_PARALLEL_WORLD_SIZE
    if _TENSOR_MODEL_PARALLEL_GROUP is None:
        return bwc_tensor_model_parallel_world_size(mpu)
    return dist.get_world_size(group=_TENSOR_MODEL_PARALLEL_GROUP)


def get_tensor_model_parallel_rank():
    if _MPU_TENSOR_MODEL_PARALLEL_RANK is not None:
        return _MPU_TENSOR_MODEL_PARALLEL_RANK
    if _TENSOR_MODEL_PARALLEL_GROUP is None:
        return bwc_tensor_model_parallel_rank(mpu)
    return dist.get_rank(group=_TENSOR_MODEL_PARALLEL_GROUP)


def get_tensor_model_parallel_src_rank():
    size = get_tensor_model_parallel_world_size()
    return dist.get_rank() // size * size


def set_tensor_model_parallel_world_size(world_size):
    global _MPU_TENSOR_MODEL_PARALLEL_WORLD_SIZE
    _MPU_TENSOR_MODEL_PARALLEL_WORLD_SIZE = world_size


def set_tensor_model_parallel_rank(rank):
    global _MPU_TENSOR_MODEL_PARALLEL_RANK
    _MPU_TENSOR_MODEL_PARALLEL_RANK = rank


get_model_parallel_group = get_tensor_model_parallel_group
get_model_parallel_rank = get_tensor_model_parallel_rank
get_model_parallel_world_size = get_tensor_model_parallel_world_size


# Expert parallel

def _get_expert_parallel_ranks(world_size, tensor_parallel_size_, expert_parallel_size_, pipeline_parallel_size_=1,
                               use_data_before_expert_parallel_=False):
    return expert_parallel_ranks(world_size, tensor_parallel_size_, expert_parallel_size_, pipeline_parallel_size_,
                                 use_data_before_expert_parallel_)


def _create_expert_and_data_parallel(expert_parallel_size_, mp_size=None, pp_size=None, mp_mode="tp",
                                     use_data_before_expert_parallel_=False, folding_spec=None):
    _make_expert_groups(expert_parallel_size_, mp_size or 1, pp_size or bwc_pipeline_parallel_world_size(mpu),
                        use_data_before_expert_parallel_)


def _create_expert_data_and_model_parallel(expert_parallel_size_, mpu, use_data_before_expert_parallel_=False):
    _make_expert_groups(expert_parallel_size_, bwc_tensor_model_parallel_world_size(mpu),
                        bwc_pipeline_parallel_world_size(mpu), use_data_before_expert_parallel_)


def _make_expert_groups(expert, tensor, pipeline, data_before_expert):
    name = f"ep_size_{expert}"
    if name in _EXPERT_PARALLEL_GROUP:
        return
    holds_all, holds_same = expert_parallel_ranks(dist.get_world_size(), tensor, expert, pipeline, data_before_expert)
    for rank_lists, groups, ranks_of in ((holds_same, _EXPERT_DATA_PARALLEL_GROUP, _EXPERT_DATA_PARALLEL_GROUP_RANKS),
                                         (holds_all, _EXPERT_PARALLEL_GROUP, _EXPERT_PARALLEL_GROUP_RANKS)):
        for ranks in rank_lists:
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                groups[name], ranks_of[name] = group, ranks


def _expert_group(groups, group_name):
    assert group_name in groups, f"there is no expert group {group_name!r}; the groups are: {', '.join(groups) or 'none'}"
    return groups[group_name]


def _get_expert_parallel_group(group_name):
    return _expert_group(_EXPERT_PARALLEL_GROUP, group_name)


def _get_expert_parallel_group_ranks(group_name):
    return _expert_group(_EXPERT_PARALLEL_GROUP_RANKS, group_name)


def _get_expert_data_parallel_group(group_name):
    return _expert_group(_EXPERT_DATA_PARALLEL_GROUP, group_name)


def _get_expert_data_parallel_group_ranks(group_name):
    return _expert_group(_EXPERT_DATA_PARALLEL_GROUP_RANKS, group_name)


def _get_expert_parallel_group_dict():
    return _EXPERT_PARALLEL_GROUP


def _get_expert_data_parallel_group_dict():
    return _EXPERT_DATA_PARALLEL_GROUP


def _get_expert_parallel_world_size(group_name):
    return dist.get_world_size(group=_get_expert_parallel_group(group_name))


def _get_expert_parallel_rank(group_name):
    return dist.get_rank(group=_get_expert_parallel_group(group_name))


def _get_expert_parallel_src_rank(group_name):
    return dist.get_global_rank(_get_expert_parallel_group(group_name), 0)


def _get_expert_data_parallel_world_size(group_name):
    return dist.get_world_size(group=_get_expert_data_parallel_group(group_name))


def _get_expert_data_parallel_rank(group_name):
    return dist.get_rank(group=_get_expert_data_parallel_group(group_name))


def _get_expert_broadcast_src_rank(group_name):
    return dist.get_global_rank(_get_expert_data_parallel_group(group_name), 0)


def _get_expert_model_parallel_world_size():
    return expert_tensor_parallel_world_size


def _get_max_expert_size():
    assert _EXPERT_PARALLEL_GROUP, "there are no expert groups yet"
    return max(int(name.rpartition("_")[2]) for name in _EXPERT_PARALLEL_GROUP)


def _get_max_expert_size_name():
    return f"ep_size_{_get_max_expert_size()}"


def _get_max_expert_parallel_group():
    return _get_expert_parallel_group(_get_max_expert_size_name())


# Secondary partitions of parameters (ZeRO++ hpZ)

def _create_zero_param_parallel_group(group_size):
    global _ZERO_PARAM_INTRA_PARALLEL_GROUP
    world_size = dist.get_world_size()
    size = min(group_size, world_size)
    _ensure_divisibility(world_size, size)
    for start in range(0, world_size, size):
        ranks = list(range(start, start + size))
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            _ZERO_PARAM_INTRA_PARALLEL_GROUP = group


def _get_zero_param_intra_parallel_group():
    return _ZERO_PARAM_INTRA_PARALLEL_GROUP


def _zero_param_parallel_is_initialized():
    return _ZERO_PARAM_INTRA_PARALLEL_GROUP is not None


def _get_zero_param_intra_parallel_rank_in_mygroup():
    return dist.get_rank(group=_ZERO_PARAM_INTRA_PARALLEL_GROUP)


def _get_zero_param_intra_parallel_group_world_size():
    return dist.get_world_size(group=_ZERO_PARAM_INTRA_PARALLEL_GROUP)


def _get_zero_param_intra_parallel_group_ranks():
    return dist.get_all_ranks_from_group(_ZERO_PARAM_INTRA_PARALLEL_GROUP)
