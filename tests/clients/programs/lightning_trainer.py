"""Lightning's demonstration Transformer under its Trainer with a strategy of DeepSpeed's: some steps, a checkpoint, the next steps in a new Trainer,
an evaluation, and the checkpoint as one file of fp32 weights.

    lightning_trainer.py STRATEGY PRECISION FOLDER OUTPUT      (as each rank; the text is FOLDER/wikitext-2.txt)
"""

import json
import sys
from pathlib import Path

import lightning
import lightning.pytorch.strategies.deepspeed as strategies
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.demos.transformer import LightningTransformer, WikiText2
from lightning.pytorch.utilities.deepspeed import convert_zero_checkpoint_to_fp32_state_dict
from safetensors.torch import save_file

STEPS = 6
# Lightning's strategy asks for GPUs, and for devices that have an index.
strategies.CUDAAccelerator = CPUAccelerator
CPUAccelerator.get_parallel_devices = staticmethod(lambda devices: [torch.device("cpu", index) for index in range(devices)])


class Demonstration(LightningTransformer):
    def __init__(self, dataset, offloaded):
        super().__init__(vocab_size=dataset.vocab_size)
        for module in self.modules():  # random numbers go on with Tessera's checkpoints, and do not with DeepSpeed's
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            elif isinstance(module, torch.nn.MultiheadAttention):
                module.dropout = 0.0
        self.dataset, self.offloaded = dataset, offloaded
        self.history = []

    def configure_optimizers(self):  # small, since this model makes much of a difference in the last digit
        optimizer = (DeepSpeedCPUAdam if self.offloaded else torch.optim.AdamW)(self.parameters(), lr=1e-4, eps=1e-4)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]

    def prepare_data(self):
        pass

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.dataset, batch_size=2)

    def test_dataloader(self):
        return torch.utils.data.DataLoader(self.dataset, batch_size=2)

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.history.append({"loss": loss.item()})
        return loss

    def test_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.history.append({"loss": loss.item()})


def trainer_of(strategy, precision, steps):
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, precision=precision, max_steps=steps, accumulate_grad_batches=2, gradient_clip_val=1.0,
        limit_test_batches=3, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.strategy.config["checkpoint"] = {"format": "deepspeed"}  # for the conversion, which reads DeepSpeed's files
    return trainer


def main(strategy, precision, folder, output):
    output = Path(output)
    dataset = WikiText2(Path(folder), block_size=16, download=False)

    lightning.seed_everything(7)
    model = Demonstration(dataset, "offload" in strategy)
    trainer = trainer_of(strategy, precision, STEPS)
    trainer.fit(model)
    trainer.save_checkpoint(output / "half.ckpt")

    lightning.seed_everything(8)
    again = Demonstration(dataset, "offload" in strategy)
    trainer = trainer_of(strategy, precision, 2 * STEPS)
    trainer.fit(again, ckpt_path=output / "half.ckpt")
    trainer.save_checkpoint(output / "whole.ckpt")
    trainer.test(again, ckpt_path=None if "stage_3" in strategy else output / "whole.ckpt", verbose=False)

    trainer.strategy.barrier()
    if trainer.is_global_zero:
        whole = convert_zero_checkpoint_to_fp32_state_dict(output / "whole.ckpt", output / "whole.pt")
        save_file({name: value.contiguous() for name, value in whole["state_dict"].items()}, output / "model.safetensors")
        (output / "trainer_state.json").write_text(json.dumps({"log_history": model.history + again.history}))


if __name__ == "__main__":
    main(*sys.argv[1:])
