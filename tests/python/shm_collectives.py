"""Every collective of torch.distributed, by the group that is named: prints a digest of what each rank got. Inputs are small
integers, so that sums are exact in any order and dtype.

    shm_collectives.py gloo|shm|tessera_mpi
"""

import json
import sys

import torch
import torch.distributed as dist

import tessera.world  # noqa: F401  (registers "shm" and "tessera_mpi")

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8]
OPS = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}


def values(rank, numel, dtype, low=0):
    return ((torch.arange(numel) * 7 + rank * 3) % 5 + low).to(dtype)


def digest(tensors):
    return [[str(t.dtype), list(t.shape), t.double().flatten().tolist()[:50], t.double().sum().item()] for t in tensors]


def collectives(rank, size):
    for dtype in DTYPES:
        for numel in (1, 5, 40 * size, 20000 * size):
            for name, op in OPS.items():
                tensor = values(rank, numel, dtype, low=1)
                dist.all_reduce(tensor, op=op)
                yield f"all_reduce {name} {dtype} {numel}", [tensor]
            tensor = values(rank, numel, dtype)
            dist.broadcast(tensor, src=size - 1)
            yield f"broadcast {dtype} {numel}", [tensor]
            tensor = values(rank, numel, dtype)
            dist.reduce(tensor, dst=0)
            yield f"reduce {dtype} {numel}", [tensor] if rank == 0 else []
            parts = [torch.empty(numel, dtype=dtype) for _ in range(size)]
            dist.all_gather(parts, values(rank, numel, dtype))
            yield f"all_gather {dtype} {numel}", parts
            full = torch.empty(numel * size, dtype=dtype)
            dist.all_gather_into_tensor(full, values(rank, numel, dtype))
            yield f"all_gather_into_tensor {dtype} {numel}", [full]
            part = torch.empty(numel, dtype=dtype)
            dist.reduce_scatter_tensor(part, values(rank, numel * size, dtype))
            yield f"reduce_scatter_tensor {dtype} {numel}", [part]
            part = torch.empty(numel, dtype=dtype)
            dist.reduce_scatter(part, [values(rank + each, numel, dtype) for each in range(size)])
            yield f"reduce_scatter {dtype} {numel}", [part]
            gathered = [torch.empty(numel, dtype=dtype) for _ in range(size)] if rank == 0 else None
            dist.gather(values(rank, numel, dtype), gathered, dst=0)
            yield f"gather {dtype} {numel}", gathered or []
            part = torch.empty(numel, dtype=dtype)
            dist.scatter(part, [values(each, numel, dtype) for each in range(size)] if rank == 0 else None, src=0)
            yield f"scatter {dtype} {numel}", [part]
    sizes_out = [each + 1 for each in range(size)]  # to rank `each`
    received = torch.empty((rank + 1) * size, 3)
    dist.all_to_all_single(received, values(rank, sum(sizes_out) * 3, torch.float32).view(-1, 3),
                           [rank + 1] * size, sizes_out)
    yield "all_to_all_single", [received]
    if rank == 0:
        dist.send(values(5, 1000, torch.float32), dst=1, tag=3)
    elif rank == 1:
        tensor = torch.empty(1000)
        dist.recv(tensor, src=0, tag=3)
        yield "send and recv", [tensor]
    transposed = values(rank, 6, torch.float32).view(2, 3).t()
    dist.all_reduce(transposed)
    yield "all_reduce of a transposed tensor", [transposed]
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank * 1000})
    yield "all_gather_object", [torch.tensor([len(each["text"]) for each in objects])]
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    yield "all_reduce of bools", [flags]
    works = [dist.all_reduce(values(rank, 30000 * size, torch.float32), async_op=True) for _ in range(4)]
    futures = [work.get_future().then(lambda future: future.value()[0] * 2) for work in works]
    yield "futures", [future.wait() for future in reversed(futures)]
    polled = values(rank, 30000 * size, torch.float32)
    work = dist.all_reduce(polled, async_op=True)
    while not work.is_completed():
        pass
    yield "polled", [polled]
    pair = dist.new_group([0, 1], backend=sys.argv[1])
    if rank < 2:
        tensor = values(rank, 17, torch.float32)
        dist.all_reduce(tensor, group=pair)
        yield "a group of two", [tensor]
    dist.barrier()


def train(rank):
    """Losses of DistributedDataParallel, whose buckets are reduced through futures."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    for _ in range(5):
        inputs = torch.randn(8, 64)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def main():
    dist.init_process_group(sys.argv[1])
    rank, size = dist.get_rank(), dist.get_world_size()
    got = [[name, digest(tensors)] for name, tensors in collectives(rank, size)]
    everybody = [None] * size
    dist.all_gather_object(everybody, [got, list(train(rank))])
    if rank == 0:
        print(json.dumps(everybody))
    dist.barrier()
    dist.destroy_process_group()


main()
