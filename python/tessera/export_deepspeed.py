"""A Tessera checkpoint as a DeepSpeed checkpoint of ZeRO stage 2, saved by one rank; a pipeline's of stage 1, by one rank a stage.

    python -m tessera.export_deepspeed TESSERA_CHECKPOINT --to FOLDER [--dtype bf16] [--like DEEPSPEED_DIR]

FOLDER then holds <tag> and `latest` as DeepSpeed 0.19.8 writes them. Needs torch, but not DeepSpeed.

DeepSpeed finds weights by name, but the optimizer's states by their place in a flat buffer. A checkpoint of the training
that is to go on, given with --like, tells the order of the parameters, their groups and the groups' options. Without it
there is one group in the order of the shard files, which is the model's where one rank wrote them. If it is a pipeline's,
the weights go by layer into the files that it has, and the parameters to its stages.
"""

import argparse
import sys
from collections import OrderedDict
from pathlib import Path

import torch

from tessera import _core
from tessera.config_keys import defaults_in
from tessera.deepspeed_writer import (COMPUTE, Training, model_name, model_states, module_of, optimizer_name, save, save_optimizer,
                                      whole_model)
from tessera.error_report import run_program
from tessera.import_deepspeed import Source, StandIn, failure, find
from tessera.kept_values import buffers_of
from tessera.loss_scale import StaticScale, dynamic_scale_as_kept


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


def save_layers(trainings, reference, folder):
    """A pipeline's weights: the files that the reference has of its layers, with the same names in them. Buffers that the
    checkpoint does not have are the reference's."""
    checkpoint = trainings[0].checkpoint
    weights = {**reference.buffers(), **buffers_of(checkpoint.client_state, checkpoint.shared_tensors())}
    weights.update(module_of(checkpoint, set().union(*(each.trained for each in trainings)), trainings[0].dtype))
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
    of_pipeline = reference is not None and reference.of_pipeline
    _core.check_tag(checkpoint.tag, checkpoint.path)
    path = Path(options.to) / checkpoint.tag
    trainings = [training_of(checkpoint, groups, part, dtype, len(parts)) for part, groups in zip(parts, groups_of_parts)]
    with _core.NewFolder(path) as aside:
        for number, training in enumerate(trainings):
            weights = {} if of_pipeline else whole_model(training)
            save({**model_states(training), **weights}, aside / model_name(training, 0, number))
            save_optimizer(training, 0, aside / optimizer_name(training, 0, number))
        if of_pipeline:
            save_layers(trainings, reference, aside)
    _core.replace_file(path.parent / "latest", path.name)
    print(f"{path}: {len(checkpoint.tensors)} parameters, compute dtype {dtype}")
    if reference is None:
        print("  DeepSpeed's zero_to_fp32 can read it; to continue training with its moments, name a checkpoint of that training "
              "with --like, which gives the order of the parameters")


def training_of(checkpoint, groups, part, dtype, stages):
    """`part`: of the reference, where there is one."""
    base = part.optimizers[0].get("base_optimizer_state") if part else None
    has_options = isinstance(base, dict) and "param_groups" in base
    step = next((state.get("step") for state in base["state"].values()), None) if has_options else None
    return Training(checkpoint, groups, dtype, stage=1 if part is not None and part.of_pipeline else 2, clip=clip_of(part),
                    scaler=scaler_of(checkpoint, part, dtype), options=base["param_groups"] if has_options else None, stages=stages,
                    steps_as=step.dtype if isinstance(step, torch.Tensor) else None)


def scaler_of(checkpoint, part, dtype):
    """With the options of the reference, which a Tessera checkpoint does not hold."""
    kept = checkpoint.engine_state["loss_scaler"]
    if dtype != "fp16" or kept["steps"] == 0:
        return StaticScale(kept["scale"] if dtype == "fp16" else 1.0)
    shown = dynamic_scale_as_kept(kept, defaults_in("fp16"))
    other = part.optimizers[0].get("loss_scaler") if part else None
    options = ("scale_factor", "scale_window", "min_scale", "delayed_shift", "consecutive_hysteresis", "raise_error_at_min_scale")
    vars(shown).update({key: value for key, value in (vars(other) if isinstance(other, StandIn) else {}).items() if key in options})
    return shown


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
