"""A DeepSpeed checkpoint (ZeRO stage 0 to 3) as a Tessera checkpoint.

    python -m tessera.import_deepspeed DEEPSPEED_DIR --to FOLDER [--tag TAG]

DEEPSPEED_DIR is a folder with `latest` and tags, or one tag's folder. FOLDER then holds global_step<N> and `latest`, for
Engine::load_checkpoint. Needs torch, but not DeepSpeed. Nothing that the files name is imported or called: classes of
DeepSpeed become inert stand-ins, and any other is refused.

How DeepSpeed cuts its flat buffers, with W ranks:
    stages 1, 2   a param group's parameters one after the other, each followed by its alignment padding, in W equal parts;
                  the padding at the end is cut off the weights, but not off the optimizer's states
    stage 3       each parameter in W parts of ceil(numel / W), a rank's parts of all parameters one after the other, cut
                  into sub-groups
"""

import argparse
import pickle
import re
import sys
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch

from tessera import _core, numpy_pickles
from tessera.error_report import made, run_program
from tessera.layer_files import ends_of_stages, layer_files, module_of_stage, prefix_of, trained_of
from tessera.loss_scale import STATE as SCALER_STATE
from tessera.param_groups import options_of

STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum")  # what Adam, Lion, SGD and Adagrad keep


class StandIn:
    """In place of an object of one of DeepSpeed's classes: keeps its constructor's arguments and its state, does nothing."""

    def __new__(cls, *args):
        made = super().__new__(cls)
        made.arguments = args
        return made

    def __init__(self, *args):
        pass


def failure(what, where, fix):
    """A file that cannot be used, as an error to be raised."""
    return made(_core.DataError, what, str(where), fix)


def load(path):
    """What torch.save wrote, its tensors mapped and read when they are used."""
    def unreadable(why):
        return failure(f"the file cannot be read: {why}", path, "use another copy of it, or an earlier checkpoint")

    if not path.is_file():
        raise failure("a file of the checkpoint is missing", path, "copy the files of all ranks into one folder")
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
        foreign = sorted(name for name in unknown if not name.startswith("deepspeed.") and not numpy_pickles.is_of_numpy(name))
        if foreign:
            raise failure(f"the file contains objects of classes that are not DeepSpeed's: {', '.join(foreign)}", path,
                          "save the checkpoint again without them; they usually come from the client state")
        stand_ins = [(StandIn, name) for name in unknown if not numpy_pickles.is_of_numpy(name)]
        with torch.serialization.safe_globals([*stand_ins, *numpy_pickles.safe_globals(unknown)]):
            content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except _core.Error:
        raise
    except (RuntimeError, ValueError, EOFError, KeyError, TypeError, AttributeError, IndexError, AssertionError, OSError,
            pickle.UnpicklingError) as error:
        raise unreadable(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    if not isinstance(content, dict):
        raise unreadable("it is not a dictionary")
    return content


def number(value, default=0):
    """Counts are ints, tensors of one element, or enums, whose stand-in keeps the value."""
    if isinstance(value, StandIn):
        value = value.arguments[0] if value.arguments else default
    if isinstance(value, torch.Tensor):
        value = value.item()
    return value if isinstance(value, (int, float)) else default


@dataclass
class Cut:
    """Where a tensor lies: runs (flat tensor of a kind's list, first, count), row-major one after the other."""
    runs: list
    shape: tuple

    def read(self, flats):
        parts = [flats[index][first:first + count] for index, first, count in self.runs]
        return torch.cat(parts) if len(parts) != 1 else parts[0]


@dataclass
class Parameter:
    name: str
    shape: tuple
    kinds: dict = field(default_factory=dict)  # kind -> (dtype, function that gives the flat tensor)
    steps: int = 0


class Part:
    """What the ranks of one copy of the parameters wrote: of a whole model, or of stage `number` of a pipeline. `models` and
    `optimizers` are their files, opened."""

    def __init__(self, folder, number=0, of_pipeline=False):
        self.folder, self.number, self.of_pipeline = folder, number, of_pipeline
        self.trained = None  # the names of what the optimizer trains, where they are known
        self.model_files = self._files("*_model_states.pt", r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
        self.optimizer_files = self._files("*_optim_states.pt",
                                           r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
        if not self.model_files and number:
            raise failure(f"the file of stage {number} is missing", folder / f"mp_rank_{number:02d}_model_states.pt",
                          "copy the files of all ranks into one folder")
        if not self.model_files:
            raise failure("no DeepSpeed checkpoint here: there is no *_model_states.pt", folder,
                          "name the folder with `latest`, or one tag's folder")
        self.models = [load(path) for path in self.model_files]
        self.model = self.models[0]
        if not of_pipeline and not isinstance(self.model.get("module"), dict):
            raise failure("the file has no weights", self.model_files[0],
                          "copy the files of all layers, layer_*-model_states.pt, into the folder if a pipeline saved it")
        self.optimizers = []
        for path in self.optimizer_files:
            state = load(path).get("optimizer_state_dict")
            if not isinstance(state, dict):
                raise self.unlike(path, "it has no optimizer_state_dict")
            self.optimizers.append(state)

    def _files(self, glob, pattern):
        found = {}
        for path in self.folder.glob(glob):
            match = re.fullmatch(pattern, path.name)
            if match is None or int(match[2]) != 0 and not self.of_pipeline:
                raise failure("the checkpoint is from tensor-, pipeline- or expert-parallel ranks", path,
                              "only data-parallel (ZeRO) checkpoints can be imported, and pipelines' with the files of their layers")
            if int(match[2]) != self.number:
                continue
            if int(match[1] or 0) in found:
                raise failure("there are two files for the same rank", path, "remove the one from the earlier save")
            found[int(match[1] or 0)] = path
        for rank in range(max(found, default=-1) + 1):
            if rank not in found:
                raise failure(f"rank {rank}'s file is missing", self.folder / glob.replace("*", f"…_rank_{rank}_…"),
                              "copy the files of all ranks into one folder")
        return [found[rank] for rank in sorted(found)]

    def unlike(self, path, what):
        return failure(f"the file does not have the form that DeepSpeed 0.19 writes: {what}", path,
                       "use a checkpoint that DeepSpeed's own zero_to_fp32.py can read")

    @property
    def stage(self):
        if not self.optimizers:
            return 0
        if "fp32_flat_groups" in self.optimizers[0]:
            return 3
        return int(number(self.optimizers[0].get("zero_stage"), 1))

    def check_ranks(self):
        if not self.optimizers:
            raise failure(f"the optimizer's files of stage {self.number} are missing", self.folder, "copy the files of all ranks into one folder")
        count = self.optimizers[0].get("partition_count")
        counts = {int(number(each)) for each in (count if isinstance(count, list) else [count])}
        if len(counts) != 1:
            raise failure("the param groups have different numbers of ranks", self.optimizer_files[0],
                          "expert-parallel checkpoints cannot be imported")
        ranks = counts.pop()
        if ranks != len(self.optimizers):
            raise failure(f"{ranks} ranks saved the checkpoint, but there are files from {len(self.optimizers)}", self.folder,
                          "copy the files of all ranks into one folder")
        if self.stage == 3 and len(self.models) != ranks:
            raise failure(f"{ranks} ranks saved the checkpoint, but there are model files from {len(self.models)}",
                          self.folder, "copy the files of all ranks into one folder")

    def shapes(self):
        """The trainable parameters of each group in the order of their flat buffer: [{name: shape}]."""
        shapes = self.model.get("param_shapes")
        if not isinstance(shapes, list):
            raise self.unlike(self.model_files[0], "it has no param_shapes")
        return [{name: tuple(shape) for name, shape in group.items()} for group in shapes]

    def buffers(self):
        """Those of the module by name."""
        module = self.model["module"]
        return {name: module[name] for name in self.model.get("buffer_names") or [] if name in module}


class Source(Part):
    """The checkpoint as found; `parts` are the stages of a pipeline, or this alone. `layers` gives the layers of the PipelineModule
    that is to have it (layer_files.Layer), where there is one."""

    def __init__(self, folder, layers=None):
        paths = layer_files(folder)
        super().__init__(folder, of_pipeline=bool(paths))
        self.parts = [self]
        if self.of_pipeline:
            self._take_stages(paths, layers() if layers is not None else None)

    def _take_stages(self, paths, layers):
        count = int(number(self.model.get("mp_world_size"), 1))
        self.parts = [Part(self.folder, stage, of_pipeline=True) for stage in range(count)]
        whole, buffers, shared = self._whole_module(paths, layers), [], {}
        for part in self.parts:
            buffers += part.model.get("buffer_names") or []
            shared.update(part.model.get("shared_params") or {})
        self.model = {**self.model, "module": whole, "buffer_names": [*dict.fromkeys(buffers)], "shared_params": shared}
        if self.stage == 0:
            self._share_out(layers, whole)

    def _whole_module(self, paths, layers):
        """The weights of all layers under the names that they have in the whole model."""
        if layers is None and self.stage == 0:
            raise failure("a pipeline's checkpoint of stage 0 does not say which of its layers are tied", self.folder,
                          "load it with engine.load_checkpoint of the PipelineModule, or save it with zero_optimization.stage 1")
        shapes = {name: None for part in self.parts for name in part.model.get("buffer_names") or []}
        if self.stage > 0:
            shapes.update((name, shape) for part in self.parts for group in part.shapes() for name, shape in group.items())
        whole, self.layers = {}, []  # the latter: (file, its names, what these begin with in the whole model)
        for index, path in paths.items():
            state = load(path)
            if layers is not None and index >= len(layers):
                raise failure(f"the checkpoint has a layer {index}, but the model only {len(layers)} layers", path,
                              "load it into a PipelineModule of the same layers")
            prefix = layers[index].prefix if layers is not None else prefix_of(index, state, shapes)
            self.layers.append((path, list(state), prefix))
            for name, value in state.items():
                whole.setdefault(prefix + name, value)
        return whole

    def _share_out(self, layers, whole):
        """Gives each stage its module."""
        for name in trained_of(layers):
            if name not in whole:
                raise failure(f"no layer's file has '{name}'", self.folder,
                              "load it into a PipelineModule of the same layers; DeepSpeed saves no layer that has a forward_fn")
        ends = ends_of_stages(layers, [len(optimizer_ids(part)) for part in self.parts])
        if ends is None:
            raise self.unlike(self.model_files[0], "the stages' optimizers do not train the parameters of the model's layers")
        for part, first, end in zip(self.parts, [0, *ends], ends):
            part.model["module"] = module_of_stage(layers[first:end], whole)
            part.trained = trained_of(layers[first:end])


def base_optimizer(source, rank):
    """What the optimizer that DeepSpeed wraps said of itself."""
    return source.optimizers[rank].get("optimizer_state_dict" if source.stage == 3 else "base_optimizer_state")


def optimizer_groups(source):
    """The optimizer's param groups without their parameters: lr, betas, …; none where they were not saved."""
    base = source.model.get("optimizer") if source.stage == 0 else base_optimizer(source, 0)
    groups = base.get("param_groups", []) if isinstance(base, dict) else []  # a list with elastic_checkpoint
    return [*map(options_of, groups)]


def states_of_group(source, rank, index):
    """The optimizer's states of one flat buffer of one rank: of a group at stages 1 and 2, of a sub-group at stage 3."""
    base = base_optimizer(source, rank)
    if isinstance(base, list):  # elastic_checkpoint
        return base[index] if index < len(base) else {}
    if not isinstance(base, dict) or "param_groups" not in base:
        raise source.unlike(source.optimizer_files[rank], "it has no optimizer state")
    ids = [each for group in base["param_groups"] for each in group["params"]]
    state = dict(base["state"].get(ids[index], {})) if index < len(ids) else {}
    if "step" not in state:  # FusedAdam of some versions counts in the group
        owner = next((group for group in base["param_groups"] if index < len(ids) and ids[index] in group["params"]), {})
        state["step"] = owner.get("step", 0)
    return state


def parameter_of(cut, name, flats, states):
    """`flats` are the flat weights that `cut` speaks of, `states` the optimizer's states of each of them."""
    parameter = Parameter(name, cut.shape)
    parameter.kinds["weight"] = flats[0].dtype, lambda: cut.read(flats)
    used = [states[index] for index, _, _ in cut.runs] or states[:1]
    parameter.steps = int(max((number(state.get("step")) for state in used), default=0))
    for kind in STATES:
        if any(isinstance(state.get(kind), torch.Tensor) for state in used):
            buffers = [state.get(kind) for state in states]
            dtype = next(buffer.dtype for buffer in buffers if buffer is not None)
            parameter.kinds[kind] = dtype, lambda buffers=buffers: cut.read(buffers)
    return parameter


def check_buffers(source, flats, states):
    for flat, state in zip(flats, states):
        for kind in STATES:
            buffer = state.get(kind)
            if isinstance(buffer, torch.Tensor) and (buffer.dim() != 1 or buffer.numel() < flat.numel()):
                raise source.unlike(source.folder, f"{kind} has shape {list(buffer.shape)}, but the weights have "
                                                   f"{flat.numel()} elements")


def partitioned_groups(source):
    """Stages 1 and 2."""
    parameters = []
    for index, group in enumerate(source.shapes()):
        flats, states = [], []
        for rank, optimizer in enumerate(source.optimizers):
            groups = optimizer.get("single_partition_of_fp32_groups")
            if not isinstance(groups, list) or index >= len(groups):
                raise source.unlike(source.optimizer_files[rank], f"it has no weights of param group {index}")
            flats.append(groups[index])
            states.append(states_of_group(source, rank, index))
        check_buffers(source, flats, states)
        paddings = (source.optimizers[0].get("param_alignment_paddings") or {index: [0] * len(group)})[index]
        begins = [0]
        for flat in flats:
            begins.append(begins[-1] + flat.numel())
        offset = 0
        for (name, shape), padding in zip(group.items(), paddings):
            end = offset + prod(shape)
            if end > begins[-1]:
                raise source.unlike(source.folder, f"param group {index} has {begins[-1]} elements, too few for '{name}'")
            runs = [(rank, max(offset, begin) - begin, min(end, begins[rank + 1]) - max(offset, begin))
                    for rank, begin in enumerate(begins[:-1]) if max(offset, begin) < min(end, begins[rank + 1])]
            parameters.append(parameter_of(Cut(runs, shape), name, flats, states))
            offset = end + padding
    return parameters


def partitioned_parameters(source):
    """Stage 3."""
    ranks = len(source.optimizers)
    flats, states, begins = [], [], []  # of all ranks: rank * sub_groups + sub_group
    sub_groups = len(source.optimizers[0]["fp32_flat_groups"])
    for rank, optimizer in enumerate(source.optimizers):
        groups = optimizer.get("fp32_flat_groups")
        if not isinstance(groups, list) or len(groups) != sub_groups:
            raise source.unlike(source.optimizer_files[rank], f"it does not have {sub_groups} groups of weights")
        flats += groups
        states += [states_of_group(source, rank, index) for index in range(sub_groups)]
    check_buffers(source, flats, states)
    begins = [0]
    for flat in flats[:sub_groups]:
        begins.append(begins[-1] + flat.numel())
    for index, flat in enumerate(flats):
        if flat.numel() != flats[index % sub_groups].numel():
            raise source.unlike(source.optimizer_files[index // sub_groups], "its groups differ in size from rank 0's")
    parameters, offset = [], 0
    for group in source.shapes():
        for name, shape in group.items():
            part = -(-prod(shape) // ranks)
            if offset + part > begins[-1]:
                raise source.unlike(source.folder, f"a rank has {begins[-1]} elements, too few for '{name}'")
            runs, left = [], prod(shape)  # the last rank's part may end in padding
            for rank in range(ranks):
                end = offset + min(part, left)
                left -= end - offset
                for index in range(sub_groups):
                    first, last = max(offset, begins[index]), min(end, begins[index + 1])
                    if first < last:
                        runs.append((rank * sub_groups + index, first - begins[index], last - first))
            parameters.append(parameter_of(Cut(runs, shape), name, flats, states))
            offset += part
    return parameters


def frozen_parameters(source, trainable, aliases):
    """Parameters that no optimizer owns: as fragments of the ranks, or among the weights of the model."""
    shapes = source.model.get("frozen_param_shapes")
    if source.stage >= 2 and shapes is None:
        return []  # saved with exclude_frozen_parameters
    parameters = []
    if shapes is not None:
        for name, shape in shapes.items():
            fragments = [model["frozen_param_fragments"][name] for model in source.models]
            if source.stage < 3:
                fragments = fragments[:1]
            flats = [fragment.reshape(-1) for fragment in fragments]
            runs, left = [], prod(shape)
            for rank, flat in enumerate(flats):
                runs.append((rank, 0, min(left, flat.numel())))
                left -= runs[-1][2]
            if left:
                raise source.unlike(source.model_files[0], f"the frozen parameter '{name}' lacks {left} elements")
            parameters.append(parameter_of(Cut(runs, tuple(shape)), name, flats, [{}] * len(flats)))
        return parameters
    for name, value in source.model["module"].items():
        if isinstance(value, torch.Tensor) and name not in trainable and name not in aliases and not is_buffer(source, name):
            parameters.append(parameter_of(Cut([(0, 0, value.numel())], tuple(value.shape)), name, [value.reshape(-1)], [{}]))
    return parameters


def is_buffer(source, name):
    return name in (source.model.get("buffer_names") or [])


def optimizer_ids(source):
    """Stage 0: the numbers of the parameters that the optimizer trains."""
    optimizer = source.model.get("optimizer")
    if not isinstance(optimizer, dict) or "param_groups" not in optimizer:
        raise failure("the optimizer state does not say which parameters it belongs to", source.model_files[0],
                      "save with zero_optimization.stage 1; at stage 0 only fp32 checkpoints can be imported")
    return [each for group in optimizer["param_groups"] for each in group["params"]]


def whole_parameters(source):
    """Stage 0: the module's own weights, and the optimizer's states by the number of the parameter. (parameters, aliases)"""
    ids, optimizer = optimizer_ids(source), source.model["optimizer"]
    parameters, aliases, seen = [], {}, {}
    for name, value in source.model["module"].items():
        if not isinstance(value, torch.Tensor) or is_buffer(source, name):
            continue
        place = (value.untyped_storage().data_ptr(), value.storage_offset(), tuple(value.shape))
        if value.numel() and place in seen:
            aliases[name] = seen[place]
            continue
        seen[place] = name
        parameters.append((name, value))
    states = [optimizer["state"].get(each, {}) for each in ids]
    if len(optimizer["param_groups"]) != 1 or any(not isinstance(state.get("exp_avg"), torch.Tensor) for state in states):
        raise failure("the order of the optimizer's parameters is not known: there are several param groups, or parameters without state", source.model_files[0], "save with zero_optimization.stage 1, which keeps their names")
    # The optimizer counts the trainable parameters in the model's order; which are frozen only their absence tells.
    made, index = [], 0
    for at, (name, value) in enumerate(parameters):
        takes = index < len(states) and tuple(states[index]["exp_avg"].shape) == tuple(value.shape)
        spare = len(parameters) - at - (len(states) - index)
        if source.trained is not None:
            takes = takes and name in source.trained
        elif takes and spare > 0 and any(tuple(other.shape) == tuple(value.shape) for _, other in parameters[at + 1:]):
            raise failure(f"it is not known whether '{name}' is frozen: other parameters have the same shape", source.model_files[0],
                          "save with zero_optimization.stage 1, which keeps the names")
        state = {key: each.reshape(-1) if isinstance(each, torch.Tensor) and each.dim() else each
                 for key, each in states[index].items()} if takes else {}
        index += takes
        made.append(parameter_of(Cut([(0, 0, value.numel())], tuple(value.shape)), name, [value.reshape(-1)], [state]))
    if index != len(states):
        raise source.unlike(source.model_files[0], "the optimizer's states do not fit the model's parameters")
    return made, aliases


def accumulation(source):
    config = source.model.get("ds_config")
    if not isinstance(config, dict):
        return 1
    batch, micro, steps, ranks = (each if isinstance(each, int) and each > 0 else None for each in (
        config.get("train_batch_size"), config.get("train_micro_batch_size_per_gpu"),
        config.get("gradient_accumulation_steps"), source.model.get("dp_world_size")))
    try:
        return steps or _core.resolve_batch_sizes(batch, micro, None, data_parallel_size=ranks)[2]
    except (_core.ConfigError, TypeError):  # it says too little
        return 1


def engine_state(source):
    scaler = source.optimizers[0].get("loss_scaler") if source.optimizers else None
    kept = vars(scaler) if isinstance(scaler, StandIn) else {}
    unscaled = _core.LossScaler(initial=1, window=1, min=1, hysteresis=1, consecutive_hysteresis=False).state
    steps = int(number(source.model.get("global_steps")))
    return {"micro_steps": steps * accumulation(source), "global_steps": steps,
            "global_samples": int(number(source.model.get("global_samples"))),
            "skipped_steps": int(number(source.model.get("skipped_steps"))), **(own_schedule(source) or {}),
            "loss_scaler": {name: type(unscaled[name])(number(kept.get(attribute), unscaled[name]))
                            for name, attribute in SCALER_STATE.items()}}


def own_schedule(source):
    """The state of one of DeepSpeed's own schedules, which the engine keeps under the same name; None for other schedules, and
    where there was none."""
    state = source.model.get("lr_scheduler")
    if not isinstance(state, dict) or list(state) != ["last_batch_iteration"]:
        return None
    return {"last_batch_iteration": int(number(state["last_batch_iteration"], -1))}


def read(source):
    """(parameters, aliases, whether frozen ones were left out). What several stages of a pipeline have is the first one's."""
    parameters, aliases = {}, dict(source.model.get("shared_params") or {})
    for part in source.parts:
        if source.stage == 0:
            found, of_part = whole_parameters(part)
            aliases.update(of_part)
        else:
            part.check_ranks()
            found = partitioned_parameters(part) if source.stage == 3 else partitioned_groups(part)
        for parameter in found:
            parameters.setdefault(parameter.name, parameter)
    frozen = frozen_parameters(source, parameters, aliases) if source.stage > 0 else []
    parameters.update((parameter.name, parameter) for parameter in frozen)
    left_out = source.stage >= 2 and source.model.get("frozen_param_shapes") is None
    return [*parameters.values()], {alias: name for alias, name in aliases.items() if name in parameters}, left_out


def write(source, folder, client_state=None, shared=None):
    """Makes <folder>/global_step<N> and <folder>/latest; the former, and how many parameters it has."""
    try:
        parameters, aliases, trainable_only = read(source)
        state = engine_state(source)
        kinds = {parameter.name: parameter.kinds for parameter in parameters}
        announced = [(each.name, each.shape, {kind: dtype for kind, (dtype, _) in each.kinds.items()}, each.steps)
                     for each in parameters]
        path = _core.write_checkpoint(folder, f"global_step{state['global_steps']}", announced,
                                      read=lambda name, kind: kinds[name][kind][1](), aliases=aliases, engine_state=state,
                                      client_state=client_state or {}, shared=shared or {}, trainable_only=trainable_only)
    except _core.Error:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:  # nothing in a file is sure
        raise source.unlike(source.folder, f"{type(error).__name__}: {error}") from None
    return path, len(parameters)


def convert(source, folder):
    path, count = write(source, folder)
    buffers = source.model.get("buffer_names") or []
    print(f"{path}: {count} parameters from ZeRO stage {source.stage}, step {number(source.model.get('global_steps'))}")
    if buffers:
        print(f"  left out, since Tessera checkpoints hold only parameters: {len(buffers)} buffers ({', '.join(buffers[:3])}"
              f"{', …' if len(buffers) > 3 else ''})")


def is_deepspeeds(folder):
    """Whether a tag's folder was written by DeepSpeed."""
    return any(folder.glob("*_model_states.pt")) and not (folder / "manifest.json").is_file()


def find(folder, tag):
    """The folder of one tag."""
    folder = Path(folder)
    if not folder.is_dir():
        raise failure("no such folder", folder, "name a folder of DeepSpeed checkpoints")
    if tag is None and is_deepspeeds(folder):
        return folder
    tag = tag or _core.read_latest(folder)
    if not tag:
        raise failure("there is no DeepSpeed checkpoint here: neither *_model_states.pt nor latest", folder,
                      "name the folder with `latest`, one tag's folder, or use --tag")
    _core.check_tag(tag, folder / "latest")
    if not (folder / tag).is_dir():
        raise failure(f"there is no checkpoint '{tag}'", folder, "use --tag to name a folder there")
    return folder / tag


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tessera.import_deepspeed",
                                     description="Write a DeepSpeed checkpoint (ZeRO stage 0 to 3) as a Tessera checkpoint.")
    parser.add_argument("deepspeed_dir", metavar="DEEPSPEED_DIR", help="Folder with `latest` and tags, or one tag's folder")
    parser.add_argument("--to", metavar="FOLDER", required=True, help="the folder to write the Tessera checkpoint to")
    parser.add_argument("--tag", help="which checkpoint (default: the one that `latest` names)")
    options = parser.parse_args(arguments)
    return run_program(lambda: convert(Source(find(options.deepspeed_dir, options.tag)), options.to))


if __name__ == "__main__":
    sys.exit(main())
