"""One rank of bench/training and bench/start: training_ranks.py OPTIONS, as step_ranks.cpp, with these options beside:
"framework" (harness/frameworks.py), "stage", "precision" (fp32 or bf16), "optimizer" (AdamW's settings)."""

import json
import os
import sys
import time

from harness.answers import answer_stream

answers = answer_stream()

import torch  # noqa: E402

from harness.frameworks import FRAMEWORKS  # noqa: E402
from harness.models import make_model  # noqa: E402


def main(options):
    torch.set_num_threads(1)
    device = torch.device(options["device"])
    if device.type == "cuda":  # this host's GPUs, shared by its ranks in turn
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    options["device"] = device
    model = make_model(options["model"])
    train_step = FRAMEWORKS[options["framework"]](options, model)
    generator = torch.Generator().manual_seed(int(os.environ.get("RANK", 0)))
    shape = options["ds_config"]["train_micro_batch_size_per_gpu"], options["length"]
    ids, labels = (torch.randint(options["model"]["vocab_size"], shape, generator=generator).to(device) for _ in range(2))

    def take_steps(count):
        begin, update_seconds = time.perf_counter(), 0
        for _ in range(count):
            loss, seconds = train_step(ids, labels)
            update_seconds += seconds
        loss = loss.item()
        peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        print(f"{time.perf_counter() - begin:.6f} {update_seconds:.6f} {loss:.9g} {peak}", file=answers)

    take_steps(1)
    for line in sys.stdin:
        take_steps(int(line))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


main(json.loads(sys.argv[1]))
