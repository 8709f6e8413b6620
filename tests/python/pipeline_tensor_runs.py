"""PipelineModules whose layers tensor ranks share, by layers of the program's own, on four ranks: run by test_pipeline_engine.py. Prints JSON,
{"<function>": what rank 0 got}. The expected losses and norms are those of plain PyTorch with the whole model."""

import sys
import tempfile

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

from megatron_layers import Copied, Summed, part_of
from named_runs import NamedRuns
from pipeline_runs import WIDTH, Embedding, difference, logits, loss_of, plainly, settings, trained

run = NamedRuns()
GROUPS = {}  # {"tp": this rank's tensor-parallel group}, as a program's mpu keeps it


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.widen, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, given):
        return given[0] + self.narrow(torch.tanh(self.widen(self.norm(given[0])))), given[1]


class Cut(Wide):
    """Made as the whole is, and cut."""

    def __init__(self):
        super().__init__()
        rank, size = dist.get_rank(GROUPS["tp"]), dist.get_world_size(GROUPS["tp"])
        self.widen.weight, self.widen.bias = (part_of(each, 0, rank, size) for each in (self.widen.weight, self.widen.bias))
        part = self.narrow.weight = part_of(self.narrow.weight, 1, rank, size)
        del part.tensor_model_parallel
        part.model_parallel = True  # GPT-NeoX' attribute

    def forward(self, given):
        wide = torch.tanh(self.widen(Copied.apply(self.norm(given[0]), GROUPS["tp"])))
        return given[0] + Summed.apply(nn.functional.linear(wide, self.narrow.weight), GROUPS["tp"]) + self.narrow.bias, given[1]


def layers(block):
    return [TiedLayerSpec("words", Embedding), *[LayerSpec(block) for _ in range(4)], TiedLayerSpec("words", Embedding, forward_fn=logits)]


def start(block, stage, **how):
    model = PipelineModule(layers(block), loss_fn=loss_of, seed_layers=True, **how)
    return deepspeed.initialize(model=model, model_parameters=[*model.parameters()], config=settings(stage))[0]


def topology(stages, data):
    grid = PipeModelDataParallelTopology(num_pp=stages, num_mp=2, num_dp=data)
    for ranks in grid.get_axis_comm_lists("model"):
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            GROUPS["tp"] = group
    return grid


@run
def layers_cut_over_tensor_ranks():
    """[stages, data-parallel ranks, ZeRO stage]: sixteen steps, and four more over two stages and two data-parallel ranks that hold whole layers."""
    losses, norms, _ = plainly(layers(Wide))
    weights = plainly(layers(Wide), 16)[2].state_dict()
    found = {}
    for stages, data, stage in ((2, 1, 0), (2, 1, 1), (1, 2, 2), (1, 2, 3), (2, 1, 3)):
        engine = start(Cut, stage, topology=topology(stages, data))
        sizes = [engine.dp_world_size, engine.mp_world_size, tuple(engine.module.parameters().__next__().shape)]
        result = trained(engine, 0, 16)
        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder, 0)
        engine.save_checkpoint(folder[0])
        together = engine.consolidated_state_dict()
        engine.module.save_state_dict(f"{folder[0]}/layers", engine.checkpoint_engine)
        dist.barrier()
        engine.destroy()
        loaded = start(Cut, stage, topology=topology(stages, data))
        loaded.module.load_state_dir(f"{folder[0]}/layers", loaded.checkpoint_engine)
        by_layer = loaded.consolidated_state_dict()
        loaded.destroy()
        whole = start(Wide, 1, num_stages=2)
        whole.load_checkpoint(folder[0])
        after = trained(whole, 16, 4)
        whole.destroy()
        found[f"{stages}, {data}, {stage}"] = {"found": [a + b for a, b in zip(result, after)], "sizes": sizes,
                                              "weights": [difference(each, weights) for each in (together, by_layer)] if together else None}
    return {"expected": [losses, norms], "runs": found}


if __name__ == "__main__":
    run.print_results(sys.argv[1:])
