"""DeepSpeed's side of bench/offload, with the same arguments and lines as offload_io.cpp: FILE BYTES BLOCK_BYTES DEPTH THREADS."""

import sys
import time

from harness.answers import answer_stream

answers = answer_stream()

import torch  # noqa: E402
from deepspeed.ops.op_builder import AsyncIOBuilder  # noqa: E402

path, size, block, depth, threads = sys.argv[1], *map(int, sys.argv[2:])
handle = AsyncIOBuilder().load(verbose=False).aio_handle(block, depth, False, True, threads)
buffer = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
buffer.view(-1, 1 << 20).copy_(torch.randint(0, 256, (1 << 20,), dtype=torch.uint8))
print("deepspeed", file=answers)
for line in sys.stdin:
    begin = time.perf_counter()
    if line.strip() == "write":
        done = handle.sync_pwrite(buffer, path, 0)
    else:
        done = handle.sync_pread(buffer, path, 0)
    seconds = time.perf_counter() - begin
    if done < 1:
        raise SystemExit(f"error: DeepSpeed's {line.strip()} returned {done}")
    print(f"{seconds:.6f}", file=answers)
