"""Programs that bring groups of their own, on four ranks: run by test_mesh.py. Prints JSON, {"<function>": what rank 0 got}.

The expected losses, norms and weights are those of plain PyTorch with the whole model and the whole batch on each rank.
"""

import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import tessera  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from tessera import zero  # noqa: E402
from tessera.mesh import mesh_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from megatron_layers import Copied, Summed, part_of  # noqa: E402
from misuse_runs import said  # noqa: E402
from named_runs import NamedRuns  # noqa: E402
from small_model import Block, adamw, batch, config, made, plainly_trained, trained  # noqa: E402

run = NamedRuns()
CLIP = 0.05  # below every norm, so that a wrong norm is a wrong weight


def groups_of(shape):
    """{axis: this rank's group}, of ranks that count row by row, and what torch makes of the same."""
    made_by_torch = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    return {axis: made_by_torch.get_group(axis) for axis in shape}, made_by_torch


def from_every_rank(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


class Unit:
    """An mpu in the way of Megatron: tensor-parallel neighbours."""

    def __init__(self, groups):
        self.groups = groups

    def get_data_parallel_group(self):
        return self.groups["dp_shard"]

    def get_tensor_model_parallel_group(self):
        return self.groups["tp"]


@run
def groups_become_a_mesh():
    """Axes, each rank's coordinates, the size of the groups over which data is parallel."""
    hybrid, of_torch = groups_of({"replicate": 2, "shard": 2})
    tensor, _ = groups_of({"dp_shard": 2, "tp": 2})
    neighbours, _ = groups_of({"tp": 2, "dp": 2})  # data-parallel ranks are 0, 1 and 2, 3
    found = {}
    for name, given in {"DeviceMesh": of_torch, "dict": hybrid, "mpu": Unit(tensor), "tp outermost": neighbours}.items():
        mesh = mesh_of(given)
        places = from_every_rank([mesh.coordinate(axis) for axis, _ in mesh.axes])
        members = from_every_rank(mesh.data.size)
        found[name] = [mesh.axes, places, members]
    incomplete = said(mesh_of, {"dp_shard": tensor["dp_shard"]})
    return {**found, "incomplete": incomplete, "nothing of the kind": said(mesh_of, nn.Linear(1, 1)),
            "sequences": said(mesh_of, {"dp_shard": tensor["dp_shard"], "cp": tensor["tp"]})}


@run
def replicas_of_sharded_state():
    """HSDP: shards within pairs of neighbours, replicas across."""
    model = made()
    expected = plainly_trained(model, adamw(model))
    mesh = groups_of({"replicate": 2, "shard": 2})[1]

    def state_of_one_parameter(**how):
        """Losses and norms, and the elements of its state on this rank."""
        model = made()
        engine, *_ = tessera.initialize(model=model, **how)
        result = trained(engine)
        place = engine.core.place_of(model.blocks[0].widen.weight)
        return result, engine.core.local_value(place, "exp_avg").numel()

    hybrid = [state_of_one_parameter(config=config(stage), mesh=mesh) for stage in range(4)]
    plain = [state_of_one_parameter(config=config(stage))[1] for stage in range(4)]
    return {"expected": expected, "results": [result for result, _ in hybrid],
            "elements": list(zip([elements for _, elements in hybrid], plain))}


class TensorParallelBlock(nn.Module):
    """Block with its wide layer over the ranks of a group: rows of `widen`, columns of `narrow`."""

    def __init__(self, whole, group):
        super().__init__()
        self.group = group
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.norm = whole.norm
        self.widen = nn.Linear(1, 1)
        self.narrow = nn.Linear(1, 1)
        self.widen.weight = part_of(whole.widen.weight, 0, rank, size)
        self.widen.bias = part_of(whole.widen.bias, 0, rank, size)
        self.narrow.weight = part_of(whole.narrow.weight, 1, rank, size)
        self.narrow.bias = whole.narrow.bias

    def forward(self, x):
        wide = torch.tanh(self.widen(Copied.apply(self.norm(x), self.group)))
        return x + Summed.apply(nn.functional.linear(wide, self.narrow.weight), self.group) + self.narrow.bias


def tensor_parallel(group):
    model = made()
    model.blocks = nn.ModuleList(TensorParallelBlock(block, group) for block in model.blocks)
    return model


def trained_on_two_shares(train_step, steps):
    """train_step(ids, labels) of the batch's first two shares, each on one data-parallel rank."""
    return [train_step(*batch(number)) for number in range(steps)]


def plainly(model, steps):
    """Losses of both shares, norms before clipping."""
    optimizer = adamw(model)

    def step(ids, labels):
        losses = [model(ids[share], labels[share]) for share in range(2)]
        (sum(losses) / 2).backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        optimizer.step()
        optimizer.zero_grad()
        return [[float(loss) for loss in losses], norm]

    return trained_on_two_shares(step, steps)


def on_engine(engine, share, steps, data_group):
    def step(ids, labels):
        loss = engine(ids[share], labels[share])
        engine.backward(loss)
        engine.step()
        losses = [None] * dist.get_world_size(data_group)
        dist.all_gather_object(losses, float(loss), group=data_group)
        return [losses, float(engine.get_global_grad_norm())]

    return trained_on_two_shares(step, steps)


@run
def tensor_parallel_layers_of_the_program():
    """(dp 2 x tp 2) with the program's own layers, at every stage; saved, and loaded where every rank has the whole."""
    whole = made()
    expected = plainly(whole, steps=4)
    groups, _ = groups_of({"dp_shard": 2, "tp": 2})
    settings = {"gradient_clipping": CLIP}
    results, loaded = [], []
    for stage in range(4):
        model = tensor_parallel(groups["tp"])
        engine, *_ = tessera.initialize(model=model, config=config(stage, **settings), mesh=groups)
        results.append(on_engine(engine, dist.get_rank(groups["dp_shard"]), 4, groups["dp_shard"]))
        kept = [from_every_rank(tempfile.mkdtemp())[0]]
        engine.save_checkpoint(kept[0], tag="four")
        other, *_ = tessera.initialize(model=made(), config=config(3, **settings))  # over all four ranks
        other.load_checkpoint(kept[0])
        found = other.consolidated_state_dict(keeps_on=None)
        loaded.append(max(float((found[name] - value).abs().max()) for name, value in whole.state_dict().items()))
    weights = said(engine.save_weights, "unused.pt")
    for stage in (1, 3):  # at 3 partitioned beforehand
        model = tensor_parallel(groups["tp"])
        zero.Init(model, mpu=Unit(groups), enabled=stage == 3)
        by_unit, *_ = tessera.initialize(model=model, config=config(stage, **settings), mpu=Unit(groups))
        results.append(on_engine(by_unit, dist.get_rank(groups["dp_shard"]), 4, groups["dp_shard"]))
        together = by_unit.consolidated_state_dict()
        if together:
            loaded.append(max(float((together[name] - value).abs().max()) for name, value in whole.state_dict().items()))
    return {"expected": expected, "results": results, "difference of what was loaded": loaded, "weights alone": weights}


@run
def placements_that_do_not_fit():
    """The whole model on ranks that say they have halves, and a dimension that is not there."""
    groups, _ = groups_of({"dp_shard": 2, "tp": 2})

    def start(placements):
        return said(tessera.initialize, model=Block(), config=config(1), mesh=groups, placements=placements)

    return {"axis": start(lambda name, parameter: {"ep": 0}), "dimension": start(lambda name, parameter: {"tp": 7})}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run.print_results(sys.argv[1:])
