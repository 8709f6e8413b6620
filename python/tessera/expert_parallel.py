"""Layers whose experts several ranks share out (nn/expert_axis.h): modules with a method share_experts and an ep_size, as deepspeed.moe.layer.MoE is.

Such ranks follow each other. For all but the experts they are data-parallel ranks.
"""

from tessera import _core, tensor_parallel
from tessera.error_report import made
from tessera.world import world_of

_WHERE = "ep_size of deepspeed.moe.layer.MoE"


def _layers_of(model):
    return [module for module in model.modules() if hasattr(module, "share_experts")]


def ranks_of_experts(model):
    """Over how many ranks its layers share out their experts; 1: each rank has all. UsageError where layers differ."""
    sizes = sorted({layer.ep_size for layer in _layers_of(model)} - {1})
    if len(sizes) > 1:
        raise made(_core.UsageError, f"layers share out their experts over {' and over '.join(map(str, sizes))} ranks", _WHERE,
                   "give all layers the same ep_size")
    return sizes[0] if sizes else 1


def mesh_of(size, taken):
    """`taken`: {name: value} of what would place the ranks, too."""
    for name, value in taken.items():
        if value is not None:
            raise made(_core.UsageError, f"{size} ranks are to share out experts, and {name} places the ranks, too", f"{_WHERE} and {name}",
                       "give one of them")
    return _core.Mesh.of_world(world_of(), [("dp_shard", 0), ("ep", size)], _WHERE)


def share(model, mesh):
    """Tells each layer who has the experts that this rank has not."""
    axis = _core.ExpertAxis(mesh.group(["ep"]))
    for layer in _layers_of(model):
        if layer.ep_size > 1:
            layer.share_experts(axis)


def is_shared_out(parameter):
    return hasattr(parameter, "tessera_expert")


def name_in_checkpoints(name, parameter):
    """With the expert's number among all in the place of that among this rank's."""
    if not is_shared_out(parameter):
        return name
    head, _, tail = name.rpartition(".deepspeed_experts.")
    return f"{head}.deepspeed_experts.{parameter.tessera_expert}.{tail.partition('.')[2]}"


def placements_on(mesh):
    """See initialize()."""
    own = [mesh.coordinate("ep")]
    return lambda name, parameter: {"ep": own} if is_shared_out(parameter) else tensor_parallel.placements(name, parameter)
