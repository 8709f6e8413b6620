"""Starts a program that is written for GPUs, unchanged, on a machine without one, and notes what its engines did.

    on_cpu.py [--tell-of-cuda] [--rounded] STEPS.json SCRIPT arguments…

With --rounded the weights that an engine is given are numbers of bf16 already, so that DeepSpeed's master weights begin as Tessera's do.
With --tell-of-cuda the files of the script's folder, and no others, find a CUDA device for each rank that is the CPU. Calls that name CUDA for nothing but order or counts do nothing here. torchvision's own library is for CUDA's torch, so its operators are declared
without it, and its CIFAR-10, a download, is pictures of random dots. Random numbers are seeded, as a program that seeds none would train
another model each time. Rank 0 writes [[loss, gradient norm], …] of all backwards and steps into STEPS.json when the program ends.
"""

import atexit
import importlib
import json
import os
import runpy
import sys
import types
from pathlib import Path

import packaging.version
import torch


def nothing(*_, **__):
    return None


def without_cuda():
    for name in ("set_device", "synchronize", "reset_peak_memory_stats", "empty_cache"):
        setattr(torch.cuda, name, lambda *_, **__: None)  # one each: TorchDynamo tells functions of torch apart


def tell_of_cuda(folder):
    """Only what these files ask of torch.cuda is answered so: torch itself, DeepSpeed and Tessera see that there is none."""
    def asked_within():
        return sys._getframe(2).f_code.co_filename.startswith(f"{folder}{os.sep}")

    is_available, device_count, current_device = torch.cuda.is_available, torch.cuda.device_count, torch.cuda.current_device
    torch.cuda.is_available = lambda: asked_within() or is_available()
    torch.cuda.device_count = lambda: int(os.environ["LOCAL_WORLD_SIZE"]) if asked_within() else device_count()
    torch.cuda.current_device = lambda: torch.device("cpu") if asked_within() else current_device()
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.LongTensor = torch.LongTensor
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: None
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.nn.Module.cuda = lambda module, *_, **__: module
    to = torch.Tensor.to
    torch.Tensor.to = lambda tensor, *more, **named: tensor if more and type(more[0]) is int else to(tensor, *more, **named)


def without_torchvision_library():
    try:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    except ImportError:
        return

    def cifar10(root, train, download, transform):
        return torchvision.datasets.FakeData(96, (3, 32, 32), 10, transform, random_offset=0 if train else 1000)

    torchvision.datasets.CIFAR10 = cifar10


def bring_back_modules():
    """What the Megatron programs import at their start and newer packages have not got: DeepSpeed's compression, setuptools' pkg_resources."""
    for name, names in (("deepspeed.compression.compress", {"init_compression": nothing, "redundancy_clean": nothing}),
                        ("pkg_resources", {"packaging": packaging})):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name]).update(names)


def noted(engine, steps):
    backward, step = engine.backward, engine.step

    def noted_backward(loss, *more, **named):
        steps.append([float(loss.detach()), None])
        return backward(loss, *more, **named)

    def noted_step(*more, **named):
        result = step(*more, **named)
        norm = engine.get_global_grad_norm()
        steps[-1][1] = None if norm is None else float(norm)
        return result

    engine.backward, engine.step = noted_backward, noted_step
    if hasattr(engine, "train_batch"):
        train_batch = engine.train_batch

        def noted_train_batch(*more, **named):
            loss = train_batch(*more, **named)
            norm = engine.get_global_grad_norm()
            steps.append([float(loss.detach()), None if norm is None else float(norm)])
            return loss

        engine.train_batch, engine.backward, engine.step = noted_train_batch, backward, step


def round_weights(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())


def note_engines(path, rounded):
    import deepspeed

    initialize, steps = deepspeed.initialize, []

    def noted_initialize(*more, **named):
        if rounded:
            round_weights(named["model"])
        results = initialize(*more, **named)
        noted(results[0], steps)
        return results

    deepspeed.initialize = noted_initialize
    if os.environ.get("RANK", "0") == "0":
        atexit.register(lambda: path.write_text(json.dumps(steps)))


def main():
    # DeepSpeed's launcher puts --local_rank before all arguments; torchrun, which starts DeepSpeed's ranks here in its place, does not.
    tell, rounded = "--tell-of-cuda" in sys.argv, "--rounded" in sys.argv
    path, script, *arguments = [word for word in sys.argv[1:] if not word.startswith("--local_rank") and word not in ("--tell-of-cuda", "--rounded")]
    path, script = Path(path), Path(script)
    path.parent.mkdir(parents=True, exist_ok=True)
    from_launcher = [f"--local_rank={os.environ['LOCAL_RANK']}"] if os.environ["CLIENT_LAUNCHER"] == "deepspeed" else []
    sys.argv = [str(script), *from_launcher, *arguments]
    sys.path[0] = str(script.parent)
    torch.manual_seed(7)
    without_cuda()
    if tell:
        tell_of_cuda(script.parent)
    without_torchvision_library()
    bring_back_modules()
    note_engines(path, rounded)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
