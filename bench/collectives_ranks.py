"""The ranks of bench/collectives: rank 0 prints a line of JSON a round and case, {mib, collective, round, way: milliseconds}.

Ways: gloo; mpi, where mpirun has started the ranks; shm on tensors from elsewhere (copied), shm on tensors of the symmetric heap (in place); and the bound: both
ranks at once do on memory of their own what the collective cannot avoid, a sum of as many parts as there are ranks
(reduce_scatter), a copy of what the others have (all_gather), both (all_reduce).
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

import tessera.world  # noqa: F401  (registers "shm" and "tessera_mpi")
from tessera.rendezvous_env import find_place, set_place


def main():
    sizes, rounds = [int(each) for each in sys.argv[1].split(",")], int(sys.argv[2])
    torch.set_num_threads(1)
    if "mpi" in sys.argv:
        set_place(find_place(os.environ, int(os.environ["MASTER_PORT"])))
    dist.init_process_group("shm")
    groups = {"shm": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if "mpi" in sys.argv:
        groups["mpi"] = dist.new_group(backend="tessera_mpi")
    shm, gloo = groups["shm"], groups["gloo"]
    size = dist.get_world_size()
    heap = shm._get_backend(torch.device("cpu"))

    def milliseconds(act):
        dist.barrier(shm)
        begin = time.perf_counter()
        act()
        dist.barrier(shm)
        return (time.perf_counter() - begin) * 1e3

    def own_part(full):  # where it belongs, as the engine gathers
        return full.view(size, -1)[dist.get_rank()]

    def in_heap(numel):
        return heap.allocate_tensor(numel, dtype=torch.float32, device=torch.device("cpu")).fill_(1)

    for mib in sizes:
        numel = mib * 2**20 // 4
        tensors = {"gloo": (torch.ones(numel), torch.ones(numel // size))}
        if "mpi" in groups:
            tensors["mpi"] = tensors["gloo"]
        tensors["shm, copied"] = tensors["gloo"]
        tensors["shm, in place"] = (in_heap(numel), in_heap(numel // size))
        parts = torch.ones(size, numel // size)
        part = torch.ones(numel // size)

        def least_sum():
            torch.add(parts[0], parts[1], out=part) if size == 2 else torch.sum(parts, 0, out=part)

        def least_copy():
            parts[1:].copy_(tensors["gloo"][0][: numel - numel // size].view(size - 1, -1))

        def both():
            least_sum()
            least_copy()

        bounds = {"reduce_scatter": least_sum, "all_gather": least_copy, "all_reduce": both}
        for turn in range(rounds + 1):  # the first warms up
            for collective, bound in bounds.items():
                times = {"bound": milliseconds(bound)}
                for way, (full, slice_) in tensors.items():
                    group = groups[way.split(",")[0]]
                    act = {"reduce_scatter": lambda: dist.reduce_scatter_tensor(slice_, full, group=group),
                           "all_gather": lambda: dist.all_gather_into_tensor(full, own_part(full), group=group),
                           "all_reduce": lambda: dist.all_reduce(full, group=group)}[collective]
                    times[way] = milliseconds(act)
                    full.fill_(1)
                if dist.get_rank() == 0 and turn > 0:
                    print(json.dumps({"mib": mib, "collective": collective, "round": turn, **times}), flush=True)
        del tensors, parts, part
    dist.barrier(gloo)
    dist.destroy_process_group()


main()
