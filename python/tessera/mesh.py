"""The groups of another framework, or of the program itself, as a mesh of ours (tessera/comm/mesh.h): named axes over all
ranks, from which the engine knows who shares data, who shards training state and who holds other parts of the model.

    mesh_of(init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_replicate", "dp_shard")))      torch's DeviceMesh
    mesh_of({"dp_shard": data_group, "tp": tensor_group})              groups of torch.distributed, outermost axis first
    mesh_of(mpu)                                                       Megatron's model-parallel unit

Data is split over dp_replicate and dp_shard; any other axis splits the model. Collective.
"""

import torch.distributed as dist

from tessera import _core
from tessera.error_report import made
from tessera.world import world_of

# What others call our axes. Any other name stays, and is an axis of the model.
_AXES = {"dp": "dp_shard", "fsdp": "dp_shard", "shard": "dp_shard", "data_parallel": "dp_shard",
         "ddp": "dp_replicate", "replicate": "dp_replicate", "hsdp": "dp_replicate"}
# The getters of an mpu for each axis, outermost first; of several, the first that it has.
_GETTERS = {
    "pp": ("get_pipeline_model_parallel_group", "get_pipe_parallel_group"),
    "dp_shard": ("get_data_parallel_group",),
    "tp": ("get_tensor_model_parallel_group", "get_slice_parallel_group", "get_model_parallel_group"),
}


def mesh_of_neighbours(axis, size, purpose, where, taken):
    """As many neighbours on this axis; the others have data of their own. `taken`: {argument of initialize: value} of what would place the
    ranks, too: then UsageError, with the purpose and `where` the size was given. Collective."""
    for name, value in taken.items():
        if value is not None:
            raise made(_core.UsageError, f"{size} ranks are to {purpose}, and {name} places the ranks, too",
                       f"{where} and the argument {name} of initialize", "give one of them")
    return _core.Mesh.of_world(world_of(), [("dp_shard", 0), (axis, size)], where)


def tensor_ranks_of(mpu):
    """How many share each layer; 1 where it has no group of them."""
    getter = next((each for each in _GETTERS["tp"] if callable(getattr(mpu, each, None))), None)
    group = getattr(mpu, getter)() if getter else None
    return dist.get_world_size(group) if isinstance(group, dist.ProcessGroup) else 1


def mesh_of(groups, where="the argument mesh of initialize"):
    """UsageError where the groups are no mesh of all ranks, or split a sequence."""
    named = {_AXES.get(axis, axis): group for axis, group in _named_groups(groups, where).items()}
    if "cp" in named and dist.get_world_size(named["cp"]) > 1:
        raise made(_core.UsageError, "the mesh has an axis 'cp': sequences that several ranks share are not in Tessera yet",
                   where, "make a mesh without it")
    return _core.Mesh.of_coordinates(world_of(), axes=list(named), own=[dist.get_rank(group) for group in named.values()])


def _named_groups(groups, where):
    """{axis: group}, outermost first."""
    if isinstance(groups, dict):
        return groups
    names = getattr(groups, "mesh_dim_names", None)
    if names:
        return {name: groups.get_group(name) for name in names}
    found = {axis: getattr(groups, getter)() for axis, getters in _GETTERS.items()
             for getter in [next((each for each in getters if hasattr(groups, each)), None)] if getter}
    if "dp_shard" in found:
        return found
    raise made(_core.UsageError,
               f"a mesh cannot be made of this {type(groups).__name__}: it has neither names of dimensions nor "
               "get_data_parallel_group()", where,
               "give a DeviceMesh with mesh_dim_names, a dict from axes to process groups, or an mpu")
