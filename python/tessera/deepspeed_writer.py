"""Files as DeepSpeed 0.19.8 writes them, of the weights and states of a Tessera checkpoint. Needs torch, but not DeepSpeed:
the few objects of DeepSpeed that such files hold are written by name.
"""

import os
import sys
import types
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from tessera import _core
from tessera.deepspeed_layout import (filled, length_of, part_of_group, part_of_parameters, sub_groups,
                                      without_padding)
from tessera.import_deepspeed import STATES
from tessera.loss_scale import StaticScale

DEEPSPEED = "0.19.8"
COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Training:
    """What was trained, of which files are written. `groups`: [[name]] of the optimizer; `options`: of each group, but for its
    parameters; None where nobody knows them, and then an optimizer's file leaves those of its reader as they are. `scaler`: with
    the attributes of DeepSpeed's; `sub_group_size`: in elements. `stages`: of a pipeline, of which this is one.
    `steps_as`: the dtype of an optimizer that counts its steps in tensors, as torch's do."""
    checkpoint: _core.CheckpointReader
    groups: list
    dtype: str
    stage: int = 2
    ranks: int = 1
    options: list = None
    scaler: StaticScale = None
    clip: float = 0.0
    sub_group_size: int = sys.maxsize
    stages: int = 1
    steps_as: torch.dtype = None

    def __post_init__(self):
        tensors = self.checkpoint.tensors
        self.trained = {name for names in self.groups for name in names}
        # {name: elements} of each flat buffer; below stage 3 there is one a group.
        self.buffers = [{name: prod(tensors[name]["shape"]) for name in names} for names in self.groups]
        self.steps = max((tensors[name]["steps"] for name in self.trained), default=0)
        self.group_of_buffer = [*range(len(self.groups))]
        if self.stage == 3:
            runs = [(run, group) for group, sizes in enumerate(self.buffers) if sizes
                    for run in sub_groups(sizes, self.ranks, self.sub_group_size)]
            self.buffers = [run for run, _ in runs]
            self.group_of_buffer = [group for _, group in runs]

    def parts(self, rank):
        """The rank's pieces of each flat buffer."""
        cut = part_of_parameters if self.stage == 3 else part_of_group
        return [cut(sizes, self.ranks, rank) for sizes in self.buffers]


def optimizer_name(training, rank, model_rank=0):
    prefix = "bf16_" if training.dtype == "bf16" else ""
    return f"{prefix}zero_pp_rank_{rank}_mp_rank_{model_rank:02d}_optim_states.pt"


def model_name(training, rank, model_rank=0):
    return f"zero_pp_rank_{rank}_mp_rank_{model_rank:02d}_model_states.pt" if training.stage == 3 else f"mp_rank_{model_rank:02d}_model_states.pt"


def save(content, path):
    """The file is whole or not there."""
    aside = Path(f"{path}.saving")
    with open(aside, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


# ---- the optimizer's file of a rank

def save_optimizer(training, rank, path):
    dynamic = training.scaler is not None and training.scaler.dynamic
    scaler_class = "DynamicLossScaler" if dynamic else "LossScaler"
    with _named_classes(f"deepspeed.runtime.fp16.loss_scaler.{scaler_class}",
                        "deepspeed.utils.tensor_fragment.fragment_address") as (scaler_type, address):
        scaler = scaler_type()
        vars(scaler).update(vars(training.scaler or StaticScale(1.0)))
        if dynamic:
            vars(scaler).update(dtype=torch.half)
        state = {"loss_scaler": scaler, "dynamic_loss_scale": dynamic, "overflow": False, "zero_stage": training.stage}
        if training.stage == 3:
            state.update(_partitioned_parameters(training, rank))
        else:
            state.update(_partitioned_groups(training, rank, address))
        save({"optimizer_state_dict": state, "ds_config": {}, "ds_version": DEEPSPEED}, path)


def _partitioned_groups(training, rank, address):
    """Stages 1 and 2."""
    parts = training.parts(rank)
    return {
        "clip_grad": training.clip, "base_optimizer_state": _base_state(training, parts),
        "base_optimizer_state_step": training.steps,
        "single_partition_of_fp32_groups": [filled(without_padding(part), "weight", training.checkpoint) for part in parts],
        "group_paddings": [length_of(part) - length_of(without_padding(part)) for part in parts],
        "param_alignment_paddings": [[0] * len(names) for names in training.groups],
        "partition_count": [training.ranks] * len(parts), "ds_version": DEEPSPEED,
        "param_slice_mappings": [_slices(part, address) for part in parts],
    }


def _partitioned_parameters(training, rank):
    parts = training.parts(rank)
    return {"partition_count": training.ranks, "optimizer_state_dict": _base_state(training, parts),
            "fp32_flat_groups": [filled(part, "weight", training.checkpoint) for part in parts]}


def _base_state(training, parts):
    """The wrapped optimizer's states: as torch.optim has them, or where its options are not known by group, as elastic
    checkpoints do."""
    tensors, checkpoint = training.checkpoint.tensors, training.checkpoint
    kinds = [[kind for kind in STATES if any(kind in tensors[name]["kinds"] for name in sizes)] for sizes in training.buffers]
    if training.options is None:
        return [{"step": training.steps, **{kind: filled(without_padding(part), kind, checkpoint) for kind in each}}
                for part, each in zip(parts, kinds)]
    made = {index: {"step": _count_of(training), **{kind: filled(part, kind, checkpoint) for kind in each}}
            for index, (part, each) in enumerate(zip(parts, kinds)) if each}
    groups = [{**options, "params": [index for index, owner in enumerate(training.group_of_buffer) if owner == group]}
              for group, options in enumerate(training.options)]
    return {"state": made, "param_groups": groups}


def _count_of(training):
    """A tensor of its own for each state: the optimizer counts on in it."""
    return training.steps if training.steps_as is None else torch.tensor(float(training.steps), dtype=training.steps_as)


def _slices(part, address):
    """Where each parameter lies in the rank's part of its group's buffer."""
    begin, places = 0, OrderedDict()
    for name, _, count in without_padding(part):
        places[name] = address()
        vars(places[name]).update(numel=count, start=begin)
        begin += count
    return places


@contextmanager
def _named_classes(*names):
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


# ---- the model's file

def module_of(checkpoint, trained, dtype):
    """The weights under all of their names: those that are trained in what DeepSpeed computes in."""
    module = OrderedDict()
    for name in checkpoint.names_as_written():
        weight = checkpoint.tensor(name, "weight")
        module[name] = weight.to(COMPUTE[dtype]) if name in trained else weight
    for alias, name in checkpoint.aliases.items():
        module[alias] = module[name]
    return module


def model_states(training):
    """What a file of a model rank holds beside the weights."""
    tensors, state = training.checkpoint.tensors, training.checkpoint.engine_state
    schedule = {key: state[key] for key in ("last_batch_iteration",) if key in state}
    return {
        "module": None, "buffer_names": [], "optimizer": None,
        "param_shapes": [OrderedDict((name, torch.Size(tensors[name]["shape"])) for name in sizes) for sizes in training.buffers],
        "frozen_param_shapes": None, "shared_params": {}, "frozen_param_fragments": None, "lr_scheduler": schedule or None,
        "data_sampler": None, "random_ltd": None, "skipped_steps": state["skipped_steps"], "global_steps": state["global_steps"],
        "global_samples": state["global_samples"], "dp_world_size": training.ranks, "mp_world_size": training.stages,
        "checkpoint_parallel_dimensions": {"pp_degree": training.stages, "tp_degree": 1}, "ds_config": {}, "ds_version": DEEPSPEED,
    }


def whole_model(training):
    """What the file of a model that is no pipeline holds besides, at stages 1 and 2."""
    module = module_of(training.checkpoint, training.trained, training.dtype)
    frozen = OrderedDict((name, module[name]) for name in _frozen_names(training))
    return {"module": module, "shared_params": dict(training.checkpoint.aliases), "frozen_param_fragments": frozen,
            "frozen_param_shapes": OrderedDict((name, value.shape) for name, value in frozen.items())}


def part_of_model(training, rank):
    """… at stage 3: no weights but the rank's part of the frozen ones."""
    checkpoint, fragments, shapes = training.checkpoint, OrderedDict(), OrderedDict()
    for name in _frozen_names(training):
        shapes[name] = torch.Size(checkpoint.tensors[name]["shape"])
        part = part_of_parameters({name: prod(shapes[name])}, training.ranks, rank)
        fragments[name] = filled(part, "weight", checkpoint).to(checkpoint.dtype(name, "weight"))
    nothing = torch.empty(0, dtype=COMPUTE[training.dtype])
    module = OrderedDict((name, nothing) for name in [*checkpoint.names_as_written(), *checkpoint.aliases])
    return {"module": module, "shared_params": dict(checkpoint.aliases), "frozen_param_fragments": fragments,
            "frozen_param_shapes": shapes}


def _frozen_names(training):
    return [name for name in training.checkpoint.names_as_written() if name not in training.trained]
