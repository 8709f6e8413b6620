"""Parallelism other than over the data, as programs ask initialize() and zero.Init for it by an mpu, a pipeline or a mesh. Of these Tessera has
pipelines and a program's own tensor-parallel layers (tensor_parallel.py is another door); each other is refused by name before anything is
allocated. A size of 1 is none.
"""

import sys

import torch.distributed as dist

from tessera import _core, expert_parallel, tensor_parallel
from tessera.error_report import made
from tessera.expert_parameters import is_expert
from tessera.mesh import mesh_of, tensor_ranks_of
from tessera.world import world_of

# Getters of a model-parallel unit: Megatron's, Megatron-DeepSpeed's, GPT-NeoX', Ulysses' and DeepSpeed's own grid's.
_KIND_OF_GETTER = {
    "get_tensor_model_parallel_world_size": "tensor",
    "get_tensor_parallel_world_size": "tensor",
    "get_slice_parallel_world_size": "tensor",
    "get_model_parallel_world_size": "model",
    "get_pipeline_model_parallel_world_size": "pipeline",
    "get_pipe_parallel_world_size": "pipeline",
    "get_sequence_parallel_world_size": "sequence",
    "get_context_parallel_world_size": "context",
    "get_expert_model_parallel_world_size": "expert",
    "get_expert_tensor_parallel_world_size": "expert tensor",
    "get_expert_parallel_world_size": "expert",
}


def unit_of(model):
    """The model-parallel unit of a PipelineModule; None for any other model. By what it has, not by its class, which is
    the package deepspeed's."""
    return model.mpu() if hasattr(model, "num_stages") and callable(getattr(model, "mpu", None)) else None


def refuse_model_parallelism(model, mpu):
    """UsageError for a unit with any model-parallel size above 1, and for one beside a PipelineModule, which has its own."""
    if unit_of(model) is None:
        check_unit(mpu, "the argument mpu of initialize", may_cut_layers=True)
    elif mpu is not None:
        raise made(_core.UsageError, "a PipelineModule brings an mpu of its own, and another one is given",
                   "the argument mpu of initialize", "leave mpu out")


def mesh_of_pipeline(model, runs_pipelines):
    """(mesh, placements) of a PipelineModule, whose stages lie on the axis "pp", and ranks that share its layers on "tp". Collective."""
    if model.num_stages > 1 and not runs_pipelines:
        raise made(_core.UsageError, f"the PipelineModule has {model.num_stages} stages, and this engine has no train_batch()",
                   "the argument model of tessera.initialize", "use deepspeed.initialize")
    topology = model.topology()
    place = topology.get_coord(dist.get_rank())
    axes = {"pipe": "pp", "data": "dp_shard", "model": "tp"}
    named = [axis for axis in topology.get_axis_names() if axis in axes]
    mesh = _core.Mesh.of_coordinates(world_of(), axes=[axes[axis] for axis in named], own=[getattr(place, axis) for axis in named])

    tensor_parallel.note_parts(model, mesh, "the topology of the PipelineModule")

    def placements(name, parameter):
        return {**tensor_parallel.placements(name, parameter), **({"pp": model.stages_of(name)} if model.num_stages > 1 else {})}
    return mesh, placements


def mesh_of_tensor_ranks(mpu, ranks_of_a_sequence):
    """Of a unit whose tensor-parallel ranks share layers of the program's own. Collective."""
    if ranks_of_a_sequence > 1:
        raise made(_core.UsageError, f"{tensor_ranks_of(mpu)} ranks share each layer, and {ranks_of_a_sequence} each sequence: both at once are not in "
                   "Tessera yet", "the argument mpu of initialize", "use one of them")
    return mesh_of(mpu, "the argument mpu of initialize")


def check_unit(mpu, where, may_cut_layers=False):
    """UsageError for a unit of which some getter returns a size above 1. Ranks that share sequences are fine where it has their group, and
    with `may_cut_layers` those that share layers are, too."""
    for getter, kind in _KIND_OF_GETTER.items():
        size = getattr(mpu, getter)() if callable(getattr(mpu, getter, None)) else 1
        if size is None or size <= 1:
            continue
        if kind in ("tensor", "model") and may_cut_layers and tensor_ranks_of(mpu) == size:
            continue
        if kind in ("tensor", "model") and may_cut_layers:
            what = f"and its tensor-parallel group has {tensor_ranks_of(mpu)} rank{'s' * (tensor_ranks_of(mpu) != 1)}"
        elif kind != "sequence":
            what = f"{kind} parallelism is not in Tessera yet"
        elif not hasattr(mpu, "get_sequence_parallel_group"):
            what = "and there is no get_sequence_parallel_group()"
        else:
            continue
        raise made(_core.UsageError, f"mpu.{getter}() is {size}: {what}", where,
                   "use 1, or leave mpu out, so that every rank trains the whole model on data of its own")


def refuse_empty_stage(model, trained, world):
    """UsageError on every rank where the layers of a pipeline's stage have nothing to train, which an optimizer cannot take. Collective."""
    if unit_of(model) is None or model.num_stages == 1:
        return
    layers = ", ".join(type(layer).__name__ for layer in model.forward_funcs) or "none"
    empty = "" if trained else f"stage {model.stage_id} of {model.num_stages} has no parameters to train; its layers: {layers}"
    for what in filter(None, world.exchange_texts(empty, "what each stage trains")):
        raise made(_core.UsageError, what, "PipelineModule",
                   "use at most as many stages as layers with parameters, and partition_method=\"parameters\"")


def check_mesh_param(mesh_param, ranks):
    """UsageError for what is not (data-parallel ranks, sequence-parallel ranks) of so many ranks."""
    if mesh_param is None:
        return
    where = "the argument mesh_param of initialize"
    try:
        data, sequence = (int(size) for size in mesh_param)
    except (TypeError, ValueError):
        raise made(_core.UsageError, f"mesh_param is {mesh_param!r}, not two numbers of ranks", where,
                   f"use ({ranks}, 1), or leave it out") from None
    if data * sequence != ranks:
        raise made(_core.UsageError, f"mesh_param {tuple(mesh_param)} has {data * sequence} "
                   f"place{'s' * (data * sequence != 1)}, and the number of ranks is {ranks}", where,
                   f"use ({ranks}, 1), or leave it out")


def refuse_spread_experts(model, world):
    """DeepSpeed averages an expert (a parameter whose `allreduce` is False) over the ranks that hold the same one: the
    expert-data-parallel group of its `group_name`. Where each rank holds every expert, that group is the data-parallel
    one, and the gradient is reduced as any other."""
    if world.size == 1:
        return
    for name, parameter in model.named_parameters():
        if is_expert(parameter) and not _is_shared_out(parameter) and not _is_on_every_rank(parameter, world.size):
            group = getattr(parameter, "group_name", None)
            raise made(_core.UsageError,
                       f"the parameter '{name}' is an expert (its allreduce is False) that not every rank holds, and of no layer that "
                       "says how experts are shared out",
                       f"its group_name, {group!r}" if group else "it has no group_name",
                       "use deepspeed.moe.layer.MoE; or use ep_size=1, so that every rank holds every expert (group_name 'ep_size_1'); or remove "
                       "allreduce where the parameter is the same on all ranks")


def _is_shared_out(parameter):
    return expert_parallel.is_shared_out(parameter) or tensor_parallel.is_part(parameter, "ep")


def _is_on_every_rank(parameter, world_size):
    name = getattr(parameter, "group_name", None)
    made_groups = sys.modules.get("deepspeed.utils.groups")  # where DeepSpeed keeps them, if anybody made some
    holders = made_groups._EXPERT_DATA_PARALLEL_GROUP.get(name) if made_groups is not None else None
    if holders is not None:
        return dist.get_world_size(holders) == world_size
    return name == "ep_size_1"
