"""Parallelism that Tessera does not have, as programs ask for it, on two ranks: run by test_parallelism.py. Prints JSON,
{"<function>": what was said}; "nothing" where a step was trained.
"""

import sys
import warnings

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import tessera  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed.pipe import PipelineModule  # noqa: E402
from deepspeed.utils import groups  # noqa: E402
from torch import nn  # noqa: E402

from misuse_runs import said  # noqa: E402
from named_runs import NamedRuns  # noqa: E402
from parallelism_getters import GETTERS  # noqa: E402
from small_model import adamw, config, made, own, plainly_trained, start, trained  # noqa: E402

run = NamedRuns()


class Unit:
    """An mpu with these getters, and the world as its data-parallel group."""

    def __init__(self, **sizes):
        for getter, size in sizes.items():
            setattr(self, getter, lambda size=size: size)

    def get_data_parallel_group(self):
        return dist.group.WORLD


def trains(**arguments):
    """A step of a small model, or what initialize says. Was any parameter taken?"""
    model = arguments.pop("model", None) or made()
    answer = said(lambda: trained(start(model, config=config(2), **arguments)[0], steps=1))
    return [*answer, any(hasattr(parameter, "tessera_place") for parameter in model.parameters())]


@run
def sizes_of_an_mpu():
    return {getter: [trains(mpu=Unit(**{getter: size})) for size in (1, 2)] for getter in [*GETTERS, "get_sequence_parallel_world_size"]}


@run
def an_mpu_of_size_one():
    """All sizes 1, some of them None as Megatron's are before it is set up: the numbers are those without."""
    model = made()
    expected = plainly_trained(model, adamw(model))
    unit = Unit(**dict.fromkeys(GETTERS, 1), get_virtual_pipeline_model_parallel_world_size=None)
    engine = start(config=config(2), mpu=unit)[0]
    found = trained(engine)
    known = groups.mpu is unit and engine.mpu is unit
    groups.mpu = None
    return {"expected": expected, "results": [found], "groups know it": known}


@run
def a_unit_of_one_tensor_rank():
    """Megatron and GPT-NeoX mark the parameters of their layers whether ranks share them or not."""
    model, found = made(), []
    expected = plainly_trained(model, adamw(model))
    for mark in ("tensor_model_parallel", "model_parallel"):
        model = made()
        for parameter in model.parameters():
            setattr(parameter, mark, True)
            parameter.partition_dim = 0
        found.append(trained(start(model, config=config(2), mpu=Unit(get_tensor_model_parallel_world_size=1))[0]))
        groups.mpu = None
    return {"expected": expected, "results": found}


@run
def meshes():
    found = {str(mesh): trains(mesh_param=mesh) for mesh in [(1, 2), (2, 1), (1, 1), 2, ("a", "b")]}
    found["group"] = list(dist.get_process_group_ranks(groups._get_data_parallel_group()))
    groups.mesh_device = None
    return found


@run
def pipelines():
    """One stage, two on an engine that is no pipeline's, and one with an mpu besides."""
    def pipeline(**how):
        return PipelineModule([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)], loss_fn=None, **how)

    engine, *_ = start(pipeline(num_stages=1), config=config(2))
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
    found = {"two": said(tessera.initialize, model=pipeline(num_stages=2), config=config(2)), "one": engine.global_steps,
             "mpu": said(start, pipeline(num_stages=1), config=config(2), mpu=Unit()),
             "train_batch": said(lambda: start(made(), config=config(2))[0].train_batch())}
    groups.mpu = None
    return found


def with_expert(group_name):
    model = made()
    expert = model.blocks[1].widen.weight
    expert.allreduce = False
    if group_name:
        expert.group_name = group_name
    return model


@run
def experts():
    """DeepSpeed reduces an expert over its expert-data-parallel group: all ranks with ep_size 1, none of them with 2."""
    model = made()
    expected = plainly_trained(model, adamw(model))
    found = {name: trains(model=with_expert(name)) for name in ("ep_size_2", "experts of mine", None)}
    groups._create_expert_and_data_parallel(1)
    groups._create_expert_and_data_parallel(2)
    found["groups made, ep_size_2"] = trains(model=with_expert("ep_size_2"))
    results = [trained(start(with_expert("ep_size_1"), config=config(stage))[0]) for stage in range(4)]
    groups._EXPERT_DATA_PARALLEL_GROUP.clear()
    results.append(trained(start(with_expert("ep_size_1"), config=config(2))[0]))
    return {"said": found, "expected": expected, "results": results}


@run
def layers_that_make_groups_of_their_own():
    """As DeepSpeed's MoE does when initialize() tells it to."""
    model = made()
    model.blocks[0].set_deepspeed_parallelism = lambda data_first: asked.append(data_first)
    asked = []
    start(model, config=config(2))
    return asked


@run
def zero_init():
    cases = {
        "mpu": {"mpu": Unit(get_tensor_model_parallel_world_size=2)},
        "zero_param_parallel_group": {"zero_param_parallel_group": dist.group.WORLD},
        "zero_quantized_weights": {"zero_quantized_weights": True},
        "zero_quantized_nontrainable_weights": {"zero_quantized_nontrainable_weights": True},
        "remote_device": {"remote_device": "nvme"}, "param_swapper": {"param_swapper": object()},
        "both groups": {"data_parallel_group": dist.group.WORLD, "sequence_data_parallel_group": dist.group.WORLD},
        "not enabled": {"mpu": Unit(get_pipeline_model_parallel_world_size=2), "remote_device": "nvme", "enabled": False},
        "fine": {"mpu": Unit(get_tensor_model_parallel_world_size=1), "remote_device": "cpu", "pin_memory": True},
    }
    found = {name: said(deepspeed.zero.Init, **arguments) for name, arguments in cases.items()}
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    sizes = []
    for group in (alone, dist.group.WORLD):
        with deepspeed.zero.Init(sequence_data_parallel_group=group):
            layer = nn.Linear(4, 4)
        sizes.append(layer.weight.ds_tensor.numel())
    return {**found, "parts": sizes}


@run
def command_lines():
    """args.local_rank, and the configuration under both of its names."""
    def arguments(**values):
        return type("Arguments", (), values)()

    return [said(start, args=arguments(local_rank=7), config=config(1)),
            said(start, args=arguments(local_rank=-1), config=config(1)),
            said(start, args=arguments(deepspeed_config="a.json", deepscale_config="b.json"))]


if __name__ == "__main__":
    deepspeed.init_distributed()
    run.print_results(sys.argv[1:])
