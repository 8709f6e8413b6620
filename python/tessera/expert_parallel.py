"""Layers whose experts several ranks share out (nn/expert_axis.h): modules with a method share_experts and an ep_size, as deepspeed.moe.layer.MoE is.
expert_tensors.py is for those of transformers.

Such ranks follow each other. For all but the experts they are data-parallel ranks.
"""

from tessera import _core, tensor_parallel
from tessera.error_report import made

WHERE = "ep_size of deepspeed.moe.layer.MoE"


def _layers_of(model):
    return [module for module in model.modules() if hasattr(module, "share_experts")]


def ranks_of_experts(model):
    """Over how many ranks its layers share out their experts; 1: each rank has all. UsageError where layers differ."""
    sizes = sorted({layer.ep_size for layer in _layers_of(model)} - {1})
    if len(sizes) > 1:
        raise made(_core.UsageError, f"layers share out their experts over {' and over '.join(map(str, sizes))} ranks", WHERE,
                   "give all layers the same ep_size")
    return sizes[0] if sizes else 1


def share(model, mesh):
    """Tells each layer who has the experts that this rank has not."""
    axis = _core.ExpertAxis(mesh.group(["ep"]), key=WHERE)
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
