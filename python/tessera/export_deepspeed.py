"""A Tessera checkpoint as a DeepSpeed checkpoint of ZeRO stage 2, saved by one rank; a pipeline's of stage 1, by one rank a stage.

    python -m tessera.export_deepspeed TESSERA_CHECKPOINT --to FOLDER [--dtype bf16] [--like DEEPSPEED_DIR]

FOLDER then holds <tag> and `latest` as DeepSpeed 0.19.8 writes them. Needs torch, but not DeepSpeed: the few objects of
DeepSpeed that such files hold are written by name.

DeepSpeed finds weights by name, but the optimizer's states by their place in a flat buffer. A checkpoint of the training
that is to go on, given with --like, tells the order of the parameters, their groups and the groups' options. Without it
there is one group in the order of the shard files, which is the model's where one rank wrote them. If it is a pipeline's,
the weights go by layer into the files that it has, and the parameters to its stages.
"""

import argparse
import os
import sys
import types
from collections import OrderedDict
from contextlib import contextmanager
from math import prod
from pathlib import Path

import torch

from tessera import _core
from tessera.config_keys import defaults_in
from tessera.error_report import run_program
from tessera.import_deepspeed import Source, StandIn, failure, find
from tessera.kept_values import buffers_of
from tessera.loss_scale import DynamicScale, StaticScale

DEEPSPEED = "0.19.8"  # the version whose files these are
MOMENTS = ("exp_avg", "exp_avg_sq")
COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def named_classes(*names):
    """Classes that pickle under the given names of modules that need not be installed; the modules are gone afterwards."""
    classes, saved = [], {}
    try:
        for name in names:
            module, _, last = name.rpartition(".")
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                package = ".".join(parts[:end])
                if package not in saved:
                    saved[package] = sys.modules.get(package)
                    sys.modules[package] = types.ModuleType(package)
            made = type(last, (), {"__module__": module, "__qualname__": last})
            setattr(sys.modules[module], last, made)
            classes.append(made)
        yield classes
    finally:
        for package, before in saved.items():
            if before is None:
                del sys.modules[package]
            else:
                sys.modules[package] = before


def groups_like(checkpoint, reference):
    """The groups of a DeepSpeed checkpoint, which must be of the same parameters, by its parts: [[[name]]]."""
    if reference.stage == 3:  # its sub-groups are not the optimizer's groups
        raise failure("the order of parameters cannot be taken from a stage 3 checkpoint", reference.folder,
                      "give one of stage 1 or 2 with --like")
    tensors, found = checkpoint.tensors, []
    for part in reference.parts:
        found.append([list(group) for group in part.shapes()])
        for name, shape in ((name, shape) for group in part.shapes() for name, shape in group.items()):
            if name not in tensors or tuple(tensors[name]["shape"]) != shape:
                raise failure(f"the checkpoints are of different models: '{name}' {list(shape)} is only in one",
                              reference.folder, "give a checkpoint of the same model with --like")
    listed = {name for groups in found for names in groups for name in names}
    missing = sorted(set(checkpoint.names_as_written(trained=True)) - listed)
    if missing:
        raise failure(f"the checkpoints are of different models: '{missing[0]}' is only in the Tessera checkpoint", reference.folder,
                      "give a checkpoint of the same model with --like")
    return found


def flat(checkpoint, names, kind):
    """One group's buffer, filled parameter by parameter; DeepSpeed pads it to a multiple of two and cuts that off again."""
    tensors = checkpoint.tensors
    buffer = torch.zeros(sum(prod(tensors[name]["shape"]) for name in names), dtype=torch.float32)
    at = 0
    for name in names:
        count = prod(tensors[name]["shape"])
        if kind in tensors[name]["kinds"]:
            buffer[at:at + count] = checkpoint.tensor(name, kind).reshape(-1)
        at += count
    return buffer


def optimizer_state(checkpoint, groups, reference):
    """The wrapped optimizer's states. By group, as elastic checkpoints have it, which leaves the options of the groups as
    they are; with a reference as torch.optim has it, with the reference's options."""
    tensors = checkpoint.tensors
    steps = max((tensors[name]["steps"] for names in groups for name in names), default=0)
    states = []
    for names in groups:
        kinds = [kind for kind in MOMENTS if any(kind in tensors[name]["kinds"] for name in names)]
        states.append({kind: flat(checkpoint, names, kind) for kind in kinds})
    base = reference.optimizers[0].get("base_optimizer_state") if reference else None
    if not isinstance(base, dict) or "param_groups" not in base:
        return [{"step": steps, **state} for state in states], steps
    made = {}
    for index, state in enumerate(states):
        before = base["state"].get(index, {}).get("step")
        step = torch.tensor(float(steps), dtype=before.dtype) if isinstance(before, torch.Tensor) else steps
        # This form is copied as it is, padding included.
        made[index] = {"step": step, **{kind: torch.nn.functional.pad(buffer, (0, buffer.numel() % 2))
                                        for kind, buffer in state.items()}}
    options = [{**group, "params": [index]} for index, group in enumerate(base["param_groups"])]
    return {"state": made, "param_groups": options}, steps


def loss_scaler(checkpoint, dtype, scaler, dynamic):
    kept = checkpoint.engine_state["loss_scaler"]
    if not dynamic:
        vars(scaler).update(vars(StaticScale(kept["scale"] if dtype == "fp16" else 1.0)))
        return scaler
    given = defaults_in("fp16")
    shown = DynamicScale(kept["scale"], given["loss_scale_window"], given["min_loss_scale"],
                         max(given["hysteresis"], kept["hysteresis"]), given["consecutive_hysteresis"],
                         raise_error_at_min_scale=True)
    shown.show(kept)
    vars(scaler).update(vars(shown), dtype=torch.half)
    return scaler


def take_options(scaler, reference):
    """What the Tessera checkpoint does not hold of the loss scaler: its options."""
    other = reference.optimizers[0].get("loss_scaler") if reference else None
    if isinstance(other, StandIn):
        options = ("scale_factor", "scale_window", "min_scale", "delayed_shift", "consecutive_hysteresis",
                   "raise_error_at_min_scale")
        vars(scaler).update({key: value for key, value in vars(other).items() if key in options and key in vars(scaler)})
    return scaler


def module_of(checkpoint, trained, dtype):
    """The weights under all of their names: those that are trained in what DeepSpeed computes in."""
    module = OrderedDict()
    for name in checkpoint.names_as_written():
        weight = checkpoint.tensor(name, "weight")
        module[name] = weight.to(COMPUTE[dtype]) if name in trained else weight
    for alias, name in checkpoint.aliases.items():
        module[alias] = module[name]
    return module


def model_states(checkpoint, groups, stages):
    """What a file of a model rank holds beside the weights."""
    tensors, state = checkpoint.tensors, checkpoint.engine_state
    schedule = {key: state[key] for key in ("last_batch_iteration",) if key in state}
    return {
        "module": None, "buffer_names": [], "optimizer": None,
        "param_shapes": [OrderedDict((name, torch.Size(tensors[name]["shape"])) for name in names) for names in groups],
        "frozen_param_shapes": None, "shared_params": {}, "frozen_param_fragments": None, "lr_scheduler": schedule or None,
        "data_sampler": None, "random_ltd": None, "skipped_steps": state["skipped_steps"], "global_steps": state["global_steps"],
        "global_samples": state["global_samples"], "dp_world_size": 1, "mp_world_size": stages,
        "checkpoint_parallel_dimensions": {"pp_degree": stages, "tp_degree": 1}, "ds_config": {}, "ds_version": DEEPSPEED,
    }


def whole_model(checkpoint, module, trained):
    """What the file of a model that is no pipeline holds besides."""
    frozen = OrderedDict((name, module[name]) for name in checkpoint.names_as_written() if name not in trained)
    return {"module": module, "shared_params": dict(checkpoint.aliases), "frozen_param_fragments": frozen,
            "frozen_param_shapes": OrderedDict((name, value.shape) for name, value in frozen.items())}


def save_layers(checkpoint, module, reference, folder):
    """A pipeline's weights: the files that the reference has of its layers, with the same names in them. Buffers that the
    checkpoint does not have are the reference's."""
    weights = {**reference.buffers(), **buffers_of(checkpoint.client_state, checkpoint.shared_tensors()), **module}
    for path, names, prefix in reference.layers:
        layer = OrderedDict()
        for name in names:
            if prefix + name not in weights:
                raise failure(f"the checkpoints are of different models: '{prefix}{name}' is only in one", path,
                              "give a checkpoint of the same model with --like")
            layer[name] = weights[prefix + name]
        save(layer, folder / path.name)


def compute_dtype(checkpoint, reference):
    """That of the reference, or of the frozen parameters, which are kept in it; otherwise fp32."""
    if reference is not None:
        config = reference.model.get("ds_config") or {}
        for name in ("bf16", "bfloat16", "fp16"):
            block = config.get(name)
            if isinstance(block, dict) and block.get("enabled") not in (None, False):
                return "fp16" if name == "fp16" else "bf16"
        return "fp32"
    for name, stored in checkpoint.tensors.items():
        if stored["kinds"] == ["weight"] and stored["pieces"]:
            for short, dtype in COMPUTE.items():
                if checkpoint.dtype(name, "weight") == dtype and short != "fp32":
                    return short
    return "fp32"


def save(content, path):
    with open(path, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def write(options):
    checkpoint = _core.CheckpointReader(options.checkpoint)
    reference = Source(find(options.like, None)) if options.like else None
    if reference is not None and reference.stage == 0:
        raise failure("a stage 0 checkpoint does not name the optimizer's groups", reference.folder,
                      "give one of stage 1 or 2 with --like")
    if checkpoint.node_local:
        raise failure("the checkpoint's files are on several hosts", checkpoint.path, "gather them in one folder first")
    dtype = options.dtype or compute_dtype(checkpoint, reference)
    parts = reference.parts if reference else [None]
    groups_of_parts = groups_like(checkpoint, reference) if reference else [[checkpoint.names_as_written(trained=True)]]
    trained = {name for groups in groups_of_parts for names in groups for name in names}
    _core.check_tag(checkpoint.tag, checkpoint.path)
    path = Path(options.to) / checkpoint.tag
    prefix = "bf16_" if dtype == "bf16" else ""
    of_pipeline = reference is not None and reference.of_pipeline
    with _core.NewFolder(path) as aside:
        module = module_of(checkpoint, trained, dtype)
        for number, (part, groups) in enumerate(zip(parts, groups_of_parts)):
            weights = {} if of_pipeline else whole_model(checkpoint, module, trained)
            save({**model_states(checkpoint, groups, len(parts)), **weights}, aside / f"mp_rank_{number:02d}_model_states.pt")
            save_optimizer(checkpoint, groups, part, dtype, aside / f"{prefix}zero_pp_rank_0_mp_rank_{number:02d}_optim_states.pt")
        if of_pipeline:
            save_layers(checkpoint, module, reference, aside)
    _core.replace_file(path.parent / "latest", path.name)
    print(f"{path}: {len(checkpoint.tensors)} parameters, compute dtype {dtype}")
    if reference is None:
        print("  DeepSpeed's zero_to_fp32 can read it; to continue training with its moments, name a checkpoint of that training "
              "with --like, which gives the order of the parameters")


def save_optimizer(checkpoint, groups, reference, dtype, path):
    base, steps = optimizer_state(checkpoint, groups, reference)
    dynamic = dtype == "fp16" and checkpoint.engine_state["loss_scaler"]["steps"] > 0
    scaler_class = "DynamicLossScaler" if dynamic else "LossScaler"
    with named_classes(f"deepspeed.runtime.fp16.loss_scaler.{scaler_class}",
                       "deepspeed.utils.tensor_fragment.fragment_address") as (scaler_type, address):
        scaler = take_options(loss_scaler(checkpoint, dtype, scaler_type(), dynamic), reference)
        sizes = [sum(prod(checkpoint.tensors[name]["shape"]) for name in names) for names in groups]
        save({
            "optimizer_state_dict": {
                "loss_scaler": scaler, "dynamic_loss_scale": dynamic, "overflow": False, "clip_grad": clip_of(reference),
                "base_optimizer_state": base, "base_optimizer_state_step": steps,
                "single_partition_of_fp32_groups": [flat(checkpoint, names, "weight") for names in groups],
                "zero_stage": 1 if reference is not None and reference.of_pipeline else 2,
                "group_paddings": [size % 2 for size in sizes],
                "param_alignment_paddings": [[0] * len(names) for names in groups], "partition_count": [1] * len(groups),
                "ds_version": DEEPSPEED, "param_slice_mappings": slices(checkpoint, groups, address),
            },
            "ds_config": {}, "ds_version": DEEPSPEED,
        }, path)


def slices(checkpoint, groups, address):
    """Where each parameter lies in its group's buffer."""
    found = []
    for names in groups:
        begin, places = 0, OrderedDict()
        for name in names:
            places[name] = address()
            vars(places[name]).update(numel=prod(checkpoint.tensors[name]["shape"]), start=begin)
            begin += vars(places[name])["numel"]
        found.append(places)
    return found


def clip_of(reference):
    clip = reference.optimizers[0].get("clip_grad") if reference else 0.0
    return clip if isinstance(clip, (int, float)) else 0.0


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tessera.export_deepspeed",
                                     description="Write a Tessera checkpoint as a DeepSpeed checkpoint (ZeRO stage 2, one rank).")
    parser.add_argument("checkpoint", metavar="TESSERA_CHECKPOINT", help="A checkpoint, or a folder of checkpoints")
    parser.add_argument("--to", metavar="FOLDER", required=True, help="the folder to write DeepSpeed's checkpoint to")
    parser.add_argument("--dtype", choices=sorted(COMPUTE), help="the dtype that DeepSpeed computes in (default: that of --like)")
    parser.add_argument("--like", metavar="DEEPSPEED_DIR", help="a stage 1 or 2 checkpoint of the training to be continued")
    return run_program(lambda: write(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
