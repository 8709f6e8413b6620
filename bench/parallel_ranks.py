"""The peer's rank of bench/parallel: parallel_ranks.py OPTIONS, as parallel_ranks.cpp, by torch.distributed.tensor.parallel or
torch.distributed.pipelining.

transformers' model, cut as Megatron cuts it: embeddings, head and loss by words, too; or its layers spread as ours are. In bf16 it trains
bf16 weights whose fp32 copies AdamW updates, as ours does. With "alone" among the options, on one rank, it is transformers' model as it is.
"""

import contextlib
import json
import os
import sys
import time

from harness.answers import answer_stream

answers = answer_stream()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.distributed import pipelining  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from harness.frameworks import MasterWeightsAdamW  # noqa: E402


def cut(model, mesh):
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        **{f"model.layers.*.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "model.layers.*.self_attn.o_proj": RowwiseParallel(),
        "model.layers.*.mlp.gate_proj": ColwiseParallel(),
        "model.layers.*.mlp.up_proj": ColwiseParallel(),
        "model.layers.*.mlp.down_proj": RowwiseParallel()})


class Stage(torch.nn.Module):
    """Some of the model's embeddings, layers and head, in a row."""

    def __init__(self, model, begin, end):
        super().__init__()
        self.rotary = model.model.rotary_emb
        self.embed = model.model.embed_tokens if begin == 0 else None
        self.layers = model.model.layers[max(begin, 1) - 1:end - 1]
        is_last = end == len(model.model.layers) + 2
        self.norm, self.head = (model.model.norm, model.lm_head) if is_last else (None, None)

    def forward(self, entering):
        hidden = self.embed(entering) if self.embed else entering
        positions = torch.arange(hidden.shape[1]).unsqueeze(0)
        turns = self.rotary(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=turns)
        return self.head(self.norm(hidden)) if self.head else hidden


def loss_of(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def pipelined(stage, options, ids):
    """What runs the forwards and backwards of a step over all ranks, and returns the loss."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    schedule = getattr(pipelining, options["schedule"])(pipelining.PipelineStage(stage, rank, ranks, torch.device("cpu")),
                                                        options["micro_batches"], loss_of)

    def run():
        losses = []
        schedule.step(*([ids] if rank == 0 else []), **({"target": ids, "losses": losses} if rank == ranks - 1 else {}))
        loss = torch.stack([each.detach() for each in losses]).mean() if losses else torch.zeros(())
        torch.distributed.broadcast(loss, ranks - 1)
        return loss
    return run


def cut_or_whole(model, ids, alone):
    def run():
        with contextlib.nullcontext() if alone else loss_parallel():
            loss = loss_of(model(input_ids=ids, use_cache=False).logits, ids)
            loss.backward()
        return loss if alone else loss.full_tensor()
    return run


def main(options):
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.float32, attn_implementation="sdpa").train()
    alone, by_layers = options["alone"], "schedule" in options
    if not alone:
        torch.distributed.init_process_group("gloo")
    if by_layers:
        rank = torch.distributed.get_rank()
        model = Stage(model, *options["bounds"][rank:rank + 2])
    elif not alone:
        cut(model, init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("tp",)))
    settings = {"lr": 1e-4, "weight_decay": 0.01}
    # Apart: a fused update takes DTensors alone, or none.
    kinds = [[each for each in model.parameters() if isinstance(each, DTensor) == is_cut] for is_cut in (False, True)]
    if options["precision"] == "bf16":
        optimizers = [MasterWeightsAdamW(kind, settings) for kind in kinds if kind]
        model.bfloat16()
    else:
        optimizers = [torch.optim.AdamW([{"params": kind} for kind in kinds if kind], fused=True, **settings)]
    ids = torch.from_file(options["tokens"], size=options["batch"] * options["length"], dtype=torch.int64)
    ids = ids.view(options["batch"], options["length"]).clone()
    run = pipelined(model, options, ids) if by_layers else cut_or_whole(model, ids, alone)

    line = "begin"
    while line:
        begin = time.perf_counter()
        loss = run()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        loss = loss.item()
        print(f"{time.perf_counter() - begin:.6f} {loss:.9g}", file=answers)
        line = sys.stdin.readline()
    if not alone:
        torch.distributed.barrier()


main(json.loads(sys.argv[1]))
