"""A loop by Lightning's Fabric with a strategy of DeepSpeed's: a model made in init_module (sharded at once at stage 3), some steps, a checkpoint,
and the next steps in new objects.

    lightning_fabric.py STRATEGY PRECISION FOLDER OUTPUT     (as each rank; the text is FOLDER/wikitext-2.txt)
"""

import json
import sys
from pathlib import Path

import lightning.fabric.strategies.deepspeed as strategies
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from lightning.fabric import Fabric
from lightning.fabric.accelerators import CPUAccelerator
from lightning.pytorch.demos.transformer import WikiText2

STEPS = 6
# Lightning's strategy asks for GPUs, and for devices that have an index.
strategies.CUDAAccelerator = CPUAccelerator
CPUAccelerator.get_parallel_devices = staticmethod(lambda devices: [torch.device("cpu", index) for index in range(devices)])


def set_up(fabric, strategy, words):
    with fabric.init_module():
        blocks = [torch.nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True) for _ in range(3)]
        model = torch.nn.Sequential(torch.nn.Embedding(words, 48), *blocks, torch.nn.Linear(48, words))
    optimizer = (DeepSpeedCPUAdam if "offload" in strategy else torch.optim.AdamW)(model.parameters(), lr=1e-3, eps=1e-4)  # above the noise of zero gradients
    return fabric.setup(model, optimizer)


def train(fabric, model, optimizer, batches):
    losses = []
    for inputs, targets in batches:
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        fabric.backward(loss, model=model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(strategy, precision, folder, output):
    output = Path(output)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy, precision=precision)
    fabric.launch()
    fabric.seed_everything(7)
    dataset = WikiText2(Path(folder), block_size=16, download=False)
    batches = list(fabric.setup_dataloaders(torch.utils.data.DataLoader(dataset, batch_size=2)))

    model, optimizer = set_up(fabric, strategy, dataset.vocab_size)
    losses = train(fabric, model, optimizer, batches[:STEPS])
    fabric.save(output / "half", {"model": model, "optimizer": optimizer, "step": STEPS})

    model, optimizer = set_up(fabric, strategy, dataset.vocab_size)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    fabric.load(output / "half", state)
    losses += train(fabric, model, optimizer, batches[state["step"]:2 * STEPS])

    if fabric.is_global_zero:
        (output / "trainer_state.json").write_text(json.dumps({"log_history": [{"loss": loss} for loss in losses]}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
