"""Runs a tool of OpenRLHF's where there is no GPU: it imports functions of flash-attn, for packed samples alone, and asks for CUDA's device. Afterwards
the losses that it wrote for TensorBoard are kept in the form of transformers' Trainer.

    openrlhf_tool.py OUTPUT TOOL ARGUMENTS      (a module, such as openrlhf.cli.train_sft)
"""

import importlib.machinery
import json
import os
import runpy
import sys
import types
from pathlib import Path

import torch
import torch.distributed.device_mesh
import transformers  # noqa: F401 (it looks for flash-attn, and is to find none)

FLASH_ATTN = {"flash_attn": (), "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"), "flash_attn.utils": (),
              "flash_attn.utils.distributed": ("all_gather",)}
meshes = torch.distributed.device_mesh.init_device_mesh


def keep_losses(output):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = {}
    for path in sorted((output / "events").glob("*")):
        events = EventAccumulator(str(path)).Reload()
        tags = events.Tags()["scalars"]
        for number, name in enumerate(("loss", "grad_norm")):
            tag = next((tag for tag in ("train/loss_mean", "train/loss") if tag in tags), None) if number == 0 else "train/grad_norm"
            for event in events.Scalars(tag) if tag in tags else ():
                rows.setdefault(event.step, {})[name] = event.value
    (output / "trainer_state.json").write_text(json.dumps({"log_history": [rows[step] for step in sorted(rows)]}))


def main():
    output = Path(sys.argv[1])
    del sys.argv[:2]
    torch.cuda.set_device = lambda device: None
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda: None
    torch.distributed.device_mesh.init_device_mesh = lambda kind, *more, **named: meshes("cpu", *more, **named)
    for name, functions in FLASH_ATTN.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(dict.fromkeys(functions))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    if os.environ["RANK"] == "0":
        keep_losses(output)


if __name__ == "__main__":
    main()
