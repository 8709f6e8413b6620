"""Runs a tool of XTuner's as its command does, where there is no GPU: mmengine chooses a CUDA device for each rank and moves to it, XTuner asks a
device for its 16-bit dtype, and imports torchvision for models of images, whose wheels in package registries are for CUDA's torch.
mmengine also imports DeepSpeed's 1-bit optimizers, which DeepSpeed 0.19.8 itself has no more, and XTuner reads checkpoints with objects of mmengine's
by torch.load, which torch refuses since 2.6 unless the environment allows it.

    xtuner_tool.py TOOL ARGUMENTS      (a module, such as xtuner.tools.train)
"""

import importlib.util
import os
import runpy
import sys
import types

import datasets  # noqa: F401 (it looks for torchvision, and is to find none)
import torch
import transformers.utils.import_utils  # noqa: F401 (the same)

os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
torch.cuda.set_device = lambda device: None
torch.cpu.is_available = torch.cpu.is_bf16_supported = lambda: False  # "auto" is fp32 then
torch.nn.Module.cuda = lambda module, device=None: module
if importlib.util.find_spec("deepspeed.runtime.fp16.onebit") is None:
    onebit = sys.modules["deepspeed.runtime.fp16.onebit"] = types.ModuleType("deepspeed.runtime.fp16.onebit")
    onebit.OnebitAdam = onebit.OnebitLamb = onebit.ZeroOneAdam = None
for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torchvision"].__version__ = "none"
sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
sys.modules["torchvision.transforms.functional"].InterpolationMode = None
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
