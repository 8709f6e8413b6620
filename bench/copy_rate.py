"""Copies between the host's memory and a device, for bench/gpu: copy_rate.py DEVICE MIB ROUNDS. Prints a line of JSON a case: "host" (pageable
or pinned), "way" (in: to the device), "GB/s" (of each round). Between the CPU and itself, where nothing is pinned, it only shows that all works."""

import json
import sys
import time

import torch


def rates(device, target, source, rounds):
    finish = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    target.copy_(source, non_blocking=True)  # the first touches pages
    found = []
    for _ in range(rounds):
        finish()
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        finish()
        found.append(source.nbytes / (time.perf_counter() - begin) / 1e9)
    return found


def main(device, mib, rounds):
    there = torch.ones(mib << 20, dtype=torch.uint8, device=device)
    for host in ("pageable", "pinned") if device == "cuda" else ("pageable",):
        here = torch.ones(mib << 20, dtype=torch.uint8, pin_memory=host == "pinned")
        for way, target, source in (("in", there, here), ("out", here, there)):
            print(json.dumps({"host": host, "way": way, "GB/s": rates(device, target, source, rounds)}), flush=True)


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
