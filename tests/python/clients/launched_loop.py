"""A training loop for a launcher to start: with Accelerate's DeepSpeed where the launcher asks for it, plain DDP otherwise.

    launched_loop.py MODEL_FOLDER RESULT_FILE      rank 0 writes {"loss": [… of each micro step], "made_partitioned": …}
"""

import json
import os
import sys
from pathlib import Path

import tiny_models
import torch
import transformers
from accelerate import Accelerator

transformers.logging.set_verbosity_error()
STEPS = 8  # micro steps; two make an update


def main(source, result):
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":  # as `accelerate launch` says it
        accelerator = Accelerator(gradient_accumulation_steps=2)
    else:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = tiny_models.load("gpt2", source)
    made_partitioned = all(parameter.numel() == 0 for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    rows = tiny_models.rows(2 * 2 * 2) * (STEPS // 2)  # each update sees the same ones
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(accelerator.gather(loss.detach()[None]).mean()))
    if accelerator.is_main_process:
        Path(result).write_text(json.dumps({"loss": losses, "made_partitioned": made_partitioned,
                                            "engine": type(model).__name__}))
    accelerator.free_memory()
    del model, optimizer, loader, loss, batch
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
