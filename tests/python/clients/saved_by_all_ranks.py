"""A model whose parameters are partitioned is saved by `save_pretrained` on every rank, as Accelerate's examples do. Run by
test_accelerate.py as two ranks with a folder and what `save_pretrained` is given; prints JSON: [largest difference of the weights, names].
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from safetensors.torch import load_file

import tiny_models

folder, kind = Path(sys.argv[1]), sys.argv[2]
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3, zero3_save_16bit_model=True, hf_ds_config={
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True}}))
made = tiny_models.make(kind)
model, _ = accelerator.prepare(made, torch.optim.AdamW(made.parameters(), lr=1e-3))
whole = accelerator.get_state_dict(model)
kept = dict(whole or {})  # save_pretrained empties what it is given
accelerator.unwrap_model(model).save_pretrained(
    folder, is_main_process=accelerator.is_main_process, save_function=accelerator.save, state_dict=whole)
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    saved = load_file(folder / "model.safetensors")
    assert deepspeed.__version__.endswith("+tessera")
    print(json.dumps([max((kept[name] - value).abs().max().item() for name, value in saved.items()), len(saved)]))
