"""The peer's rank of bench/parallel: parallel_ranks.py OPTIONS, as parallel_ranks.cpp, by torch.distributed.tensor.parallel.

transformers' model, cut as Megatron cuts it: embeddings, head and loss by words, too. In bf16 it trains bf16 weights whose fp32 copies AdamW
updates, as ours does. With "alone" among the options, on one rank, it is transformers' model as it is.
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


def main(options):
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.float32, attn_implementation="sdpa").train()
    alone = options.get("alone", False)
    if not alone:
        torch.distributed.init_process_group("gloo")
        cut(model, init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("tp",)))
    settings = {"lr": 1e-4, "weight_decay": 0.01}
    # Apart: a fused update takes DTensors alone, or none.
    kinds = [[each for each in model.parameters() if isinstance(each, DTensor) == is_cut] for is_cut in (False, True)]
    if options["precision"] == "bf16":
        optimizers = [MasterWeightsAdamW(kind, settings) for kind in kinds if kind]
        model.bfloat16()
    else:
        optimizers = [torch.optim.AdamW([{"params": kind} for kind in kinds if kind], fused=True, **settings)]
    ids = torch.from_file(options["tokens"], size=options["micro_batch"] * options["length"], dtype=torch.int64)
    ids = ids.view(options["micro_batch"], options["length"]).clone()
    targets = ids[:, 1:].flatten()

    line = "begin"
    while line:
        begin = time.perf_counter()
        with contextlib.nullcontext() if alone else loss_parallel():
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets)
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        loss = (loss if alone else loss.full_tensor()).item()
        print(f"{time.perf_counter() - begin:.6f} {loss:.9g}", file=answers)
        line = sys.stdin.readline()
    if not alone:
        torch.distributed.barrier()


main(json.loads(sys.argv[1]))
