"""What needs two ranks, in one program: rank 0 prints one line of JSON for test_two_ranks.py."""

import json
import math

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime import utils as parts
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipelineParallelGrid
from deepspeed.utils import groups
from tessera.recompute import keep_parts, recomputed
from tessera.rng_streams import RngStreams

found = {}
deepspeed.init_distributed()
rank = dist.get_rank()
found["world"] = [dist.get_world_size(), dist.get_local_rank(), torch.distributed.get_backend()]
dist.configure(enabled=True)

# Collectives
total = torch.full((3,), rank + 1.0)
dist.all_reduce(total)
gathered = torch.empty(4)
dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank)))
part = torch.empty(2)
dist.reduce_scatter_tensor(part, torch.arange(4.0))
exchanged = torch.empty(2)
dist.all_to_all_single(exchanged, torch.tensor([10.0 * rank, 10.0 * rank + 1]))
outputs = [torch.empty(2), torch.empty(4)]
dist.all_gather_coalesced(outputs, [torch.full((1,), float(rank)), torch.full((2,), float(rank))], async_op=True).wait()
peer, received = 1 - rank, torch.empty(1)
operations = [dist.P2POp(dist.isend, torch.tensor([float(rank)]), peer), dist.P2POp(dist.irecv, received, peer)]
for request in dist.batch_isend_irecv(operations):
    request.wait()
found["collectives"] = [total.tolist(), gathered.tolist(), part.tolist(), exchanged.tolist(),
                        [output.tolist() for output in outputs], received.tolist()]
summary = dist.log_summary(return_dict=True, show_straggler=True)["summary"]
found["logged"] = {name: [[size, row["count"]] for size, row in rows.items()] for name, rows in summary.items()}
dist.configure(enabled=False)

# Groups
groups._create_expert_and_data_parallel(2)
found["groups"] = [groups._get_data_parallel_world_size(), groups._get_expert_parallel_group_ranks("ep_size_2"),
                   groups._get_expert_data_parallel_world_size("ep_size_2"), groups._get_sequence_parallel_world_size()]

# Partitioned tensors, norms, overflow
whole = torch.arange(15.0).view(3, 5)
partitioned = parts.PartitionedTensor(whole, dist.get_world_group())
again = parts.PartitionedTensor.from_meta(partitioned.to_meta(), partitioned.data(), dist.get_world_group())
found["partitioned"] = [list(partitioned.local_size()), torch.equal(again.full(), whole)]

shared, expert = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
shared.grad, expert.grad, expert.allreduce = torch.ones(1), torch.tensor([rank + 1.0]), False
found["norm"] = float(parts.clip_grad_norm_([shared, expert], max_norm=0.1))
expert.grad = torch.tensor([math.inf if rank else 1.0])
found["overflow"] = [parts.CheckOverflow([[shared]]).check(), parts.CheckOverflow([[shared, expert]]).check()]

# Activation checkpoints whose inputs are shared out to the ranks
torch.manual_seed(1)
layer, value = torch.nn.Linear(64, 64), torch.randn(32, 64)
plain, kept = value.clone().requires_grad_(), value.clone().requires_grad_()
layer(plain).square().sum().backward()
streams = RngStreams(deepspeed.get_accelerator(), "default")
recomputed(layer, (kept,), {}, streams, [keep_parts(dist.get_world_group())]).square().sum().backward()
found["kept in parts"] = torch.allclose(plain.grad, kept.grad)

# Pipelines
grid = PipelineParallelGrid(PipeDataParallelTopology(num_pp=2, num_dp=1))
found["grid"] = [grid.pp_group, grid.dp_group, grid.is_first_stage, grid.stage_to_global(1), grid.p2p_groups]
torch.manual_seed(rank)
model = PipelineModule([TiedLayerSpec("tied", torch.nn.Linear, 4, 4), torch.nn.ReLU(), LayerSpec(torch.nn.Linear, 4, 4),
                        TiedLayerSpec("tied", torch.nn.Linear, 4, 4, forward_fn=lambda layer, x: x @ layer.weight)],
                       num_stages=2, activation_checkpoint_interval=1)
weight = model.tied_modules["tied"].weight
weights = [torch.empty_like(weight) for _ in range(2)]
dist.all_gather(weights, weight.detach())
model(torch.ones(2, 4)).sum().backward()
model.allreduce_tied_weight_gradients()
tied = [torch.empty_like(weight) for _ in range(2)]
dist.all_gather(tied, weight.grad)
found["pipeline"] = [model.parts, [name for name, _ in model.named_parameters()], torch.equal(*weights),
                     torch.allclose(*tied)]

if rank == 0:
    print(json.dumps(found))
