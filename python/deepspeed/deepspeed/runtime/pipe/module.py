"""A model as a list of layers, of which each stage of a pipeline builds its own.

    PipelineModule([LayerSpec(nn.Linear, 8, 8), nn.ReLU(), lambda x: x.sum()], num_stages=2, loss_fn=loss)

A layer is an nn.Module, a LayerSpec (built on its stage only), or a function. forward() runs this stage's layers.
"""

import contextlib
import re
from functools import partial
from pathlib import Path

import torch
from torch import nn

from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipelineParallelGrid
from deepspeed.utils.logging import logger
from tessera import _core, zero
from tessera._core import balanced_bounds, uniform_bounds
from tessera.error_report import made
from tessera.layer_files import TIED, Layer


class PipelineError(Exception):
    """A pipeline that cannot be."""


class LayerSpec:
    """A layer to be: its class and the arguments of its constructor."""

    def __init__(self, typename, *module_args, **module_kwargs):
        if not isinstance(typename, type) or not issubclass(typename, nn.Module):
            raise RuntimeError(f"LayerSpec takes a subclass of torch.nn.Module, not {typename!r}")
        self.typename, self.module_args, self.module_kwargs = typename, module_args, module_kwargs
        self.global_rank = dist.get_rank() if dist.is_initialized() else -1

    def __repr__(self):
        return f"{self.typename.__name__}({self.module_args}, {self.module_kwargs})"

    def build(self, log=False):
        if log:
            logger.info(f"RANK={self.global_rank} building {self!r}")
        return self.typename(*self.module_args, **self.module_kwargs)


class TiedLayerSpec(LayerSpec):
    """A layer whose weights are those of all others with the same key. `forward_fn(module, x)` is what it does, if not
    its own forward."""

    def __init__(self, key, typename, *module_args, forward_fn=None, tied_weight_attr=["weight"], **module_kwargs):
        super().__init__(typename, *module_args, **module_kwargs)
        self.key, self.forward_fn = key, forward_fn
        self.tied_weight_attr = [tied_weight_attr] if isinstance(tied_weight_attr, str) else tied_weight_attr


class PipelineModule(nn.Module):
    """Needs the default process group. Names of parameters are the layer's index in the whole list and their own name;
    tied layers lie in `tied_modules`."""

    def __init__(self, layers, num_stages=None, topology=None, loss_fn=None, seed_layers=False, seed_fn=None,
                 base_seed=1234, partition_method="parameters", activation_checkpoint_interval=0,
                 activation_checkpoint_func=checkpointing.checkpoint, checkpointable_layers=None, dynamic_shape=False):
        super().__init__()
        if num_stages is None and topology is None:
            raise RuntimeError("PipelineModule needs num_stages or topology")
        self.loss_fn = loss_fn
        self.seed_layers, self.seed_fn, self.base_seed = seed_layers, seed_fn, base_seed
        self.checkpointable_layers = checkpointable_layers
        assert checkpointable_layers is None or isinstance(checkpointable_layers, list), \
            "checkpointable_layers must be a list of class names"
        self.activation_checkpoint_interval = activation_checkpoint_interval
        self.activation_checkpoint_func = activation_checkpoint_func
        self.is_checkpointable_results, self.is_checkpointable_results_interval = [], None
        self.dynamic_shape = dynamic_shape
        self.micro_offset = 0

        self.world_size = dist.get_world_size()
        self.global_rank = dist.get_rank()
        self.local_rank = dist.get_local_rank()
        self._topo = topology if topology is not None else self._topology_of(num_stages)
        self.num_stages = self._topo.get_dim("pipe")
        self._grid = PipelineParallelGrid(topology=self._topo)
        self.stage_id = self._grid.get_stage_id()

        self._layer_specs = list(layers)
        self._num_layers = len(self._layer_specs)
        self.forward_funcs, self.fwd_map = [], {}
        self.tied_modules, self.tied_weight_attrs = nn.ModuleDict(), {}
        self._partition_layers(method=partition_method)
        self._build()
        self.to(get_accelerator().device_name(self.local_rank))
        self.tied_comms = self._index_tied_modules()
        self._synchronize_tied_modules()

    def _topology_of(self, stages):
        if self.world_size % stages != 0:
            raise RuntimeError(f"{self.world_size} ranks cannot be divided into {stages} stages: "
                               "num_stages has to divide the number of ranks")
        return PipeDataParallelTopology(num_pp=stages, num_dp=self.world_size // stages)

    # Which layers are this stage's

    def _partition_layers(self, method="uniform"):
        self.parts = self._bounds(method)
        self._set_bounds(start=self.parts[self.stage_id], stop=self.parts[self.stage_id + 1])

    def _bounds(self, method):
        method = method.lower()
        if method == "uniform":
            return uniform_bounds(self._num_layers, self.num_stages)
        if method == "parameters":
            return balanced_bounds(self._count_layer_params(), self.num_stages)
        if method.startswith("type:"):
            chosen = set(self._find_layer_type(method.split(":", 1)[1]))
            return balanced_bounds([int(index in chosen) for index in range(self._num_layers)], self.num_stages)
        raise NotImplementedError(f"partition_method {method!r} is unknown; use uniform, parameters or type:<regex>")

    def _modules_of_layers(self):
        """The module of each layer in the whole list, None of a function. That of a LayerSpec is made on the meta device for it: without
        memory."""
        for layer in self._layer_specs:
            if isinstance(layer, LayerSpec):
                with torch.device("meta"):
                    layer = layer.build()
            yield layer if isinstance(layer, nn.Module) else None

    def _count_layer_params(self):
        """Trainable elements of each layer."""
        return [sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad) if module is not None else 0
                for module in self._modules_of_layers()]

    def layers_of_pipeline(self):
        """What the parameters of each layer in the whole list are called: an engine asks it to read what DeepSpeed saved."""
        found = []
        for index, (spec, module) in enumerate(zip(self._layer_specs, self._modules_of_layers())):
            prefix = f"{TIED}{spec.key}." if isinstance(spec, TiedLayerSpec) else f"{index}."
            parameters = module.named_parameters() if module is not None else ()
            found.append(Layer(prefix, [prefix + name for name, parameter in parameters if parameter.requires_grad]))
        return found

    def _find_layer_type(self, layername):
        """Indices of the layers whose class name the regular expression finds."""
        wanted = re.compile(layername, re.IGNORECASE)
        found = [index for index, layer in enumerate(self._layer_specs) if wanted.search(_class_name(layer))]
        if not found:
            raise RuntimeError(f"no layer's class name matches {layername!r}; "
                               f"the classes are {', '.join(sorted(set(map(_class_name, self._layer_specs))))}")
        return found

    def _set_bounds(self, start=None, stop=None):
        self._local_start, self._local_stop = start, stop

    def stage_owner(self, layer_idx):
        assert 0 <= layer_idx < self._num_layers, f"there is no layer {layer_idx}: the model has {self._num_layers}"
        return next(stage for stage in range(self.num_stages) if layer_idx < self.parts[stage + 1])

    def partitions(self):
        return self.parts

    def _build(self):
        for index in range(self._local_start, self._local_stop):
            layer = self._layer_specs[index]
            if self.seed_layers:
                (self.seed_fn or _set_seed)(self.base_seed + index)
            if isinstance(layer, TiedLayerSpec):
                self._add_tied(layer)
            elif isinstance(layer, (nn.Module, LayerSpec)):
                built = layer.build() if isinstance(layer, LayerSpec) else layer
                self.forward_funcs.append(built)
                self.fwd_map[str(index)] = len(self.forward_funcs) - 1
                self.add_module(str(index), built)
            else:
                self.forward_funcs.append(layer)
        for parameter in self.parameters():
            parameter.ds_pipe_replicated = False

    def _add_tied(self, spec):
        if spec.key not in self.tied_modules:
            self.tied_modules[spec.key] = spec.build()
            self.tied_weight_attrs[spec.key] = spec.tied_weight_attr
        module = self.tied_modules[spec.key]
        self.forward_funcs.append(module if spec.forward_fn is None else partial(spec.forward_fn, module))

    # Forward

    def forward(self, forward_input):
        self.micro_offset += 1
        interval = self.activation_checkpoint_interval
        if interval == 0:
            return self._run(self.forward_funcs, self.micro_offset, forward_input)
        self._precompute_checkpointable_values()
        value = forward_input
        for start, checkpointable in zip(range(0, len(self.forward_funcs), interval), self.is_checkpointable_results):
            segment = partial(self._run, self.forward_funcs[start:start + interval], self.micro_offset)
            inputs = value if isinstance(value, tuple) else (value,)
            value = (self.activation_checkpoint_func(lambda *given, run=segment: run(given), *inputs)
                     if checkpointable else segment(inputs))
        return value

    def _run(self, layers, forward, value):
        """Layers one after the other; a tuple of one is handed on as its element. `forward` counts those of the module, from 1: what is
        computed again has the seeds of its own."""
        for offset, layer in enumerate(layers):
            if self.seed_layers:
                (self.seed_fn or _set_seed)(self.base_seed * (forward + 1) + self._local_start + offset)
            if isinstance(value, tuple) and len(value) == 1:
                value = value[0]
            value = layer(value)
        return value

    def _precompute_checkpointable_values(self):
        interval = self.activation_checkpoint_interval
        if interval > 0 and self.is_checkpointable_results_interval != interval:
            self.is_checkpointable_results = [self._is_checkpointable(self.forward_funcs[start:start + interval])
                                              for start in range(0, len(self.forward_funcs), interval)]
            self.is_checkpointable_results_interval = interval

    def _is_checkpointable(self, funcs):
        if self.checkpointable_layers is not None:
            return all(type(layer).__name__ in self.checkpointable_layers for layer in funcs)
        if self.activation_checkpoint_func is checkpointing.non_reentrant_checkpoint:
            return True
        return any(True for layer in funcs if isinstance(layer, nn.Module) for _ in layer.parameters())

    def set_checkpoint_interval(self, interval):
        assert interval >= 0, f"the interval is {interval}; it has to be 0 (no checkpointing) or more"
        self.activation_checkpoint_interval = interval
        self._precompute_checkpointable_values()

    # Weights that several stages hold

    def _index_tied_modules(self):
        """By key: the ranks of this rank's pipeline that hold the module, their group, and the weights. All ranks make
        all groups."""
        found = {}
        if self._topo.get_dim("pipe") == 1:
            return found
        specs = [(index, layer) for index, layer in enumerate(self._layer_specs) if isinstance(layer, TiedLayerSpec)]
        for key in sorted({layer.key for _, layer in specs}):
            stages = sorted({self.stage_owner(index) for index, layer in specs if layer.key == key})
            for pipeline in self._topo.get_axis_comm_lists("pipe"):
                ranks = [pipeline[stage] for stage in stages]
                group = dist.new_group(ranks=ranks)
                if self.global_rank in ranks:
                    found[key] = {"ranks": ranks, "group": group, "weight_attr": self.tied_weight_attrs[key],
                                  "module": self.tied_modules[key]}
                    if self.global_rank != ranks[0]:
                        for parameter in self.tied_modules[key].parameters():
                            parameter.ds_pipe_replicated = True
        return found

    def _synchronize_tied_modules(self):
        """Every stage begins with the first one's. All of a module's parameters are one, also those that tied_weight_attr does
        not name, as in a model of one stage."""
        for tied in self.tied_comms.values():
            for parameter in tied["module"].parameters():
                dist.broadcast(parameter.data, src=min(tied["ranks"]), group=tied["group"])

    def stages_of(self, name):
        """The stages that hold the parameter of this name, rising. What a derived class has beside its layers, all hold."""
        first, _, rest = name.partition(".")
        if first == "tied_modules":
            key = rest.partition(".")[0]
            return sorted({self.stage_owner(index) for index, layer in enumerate(self._layer_specs)
                           if isinstance(layer, TiedLayerSpec) and layer.key == key})
        return [self.stage_owner(int(first))] if first.isdecimal() else list(range(self.num_stages))

    def allreduce_tied_weight_gradients(self):
        for weight, group, _ in self._tied():
            dist.all_reduce(weight.grad, group=group)

    def get_tied_weights_and_groups(self):
        return [(weight, group) for weight, group, _ in self._tied()]

    def _tied(self):
        for tied in self.tied_comms.values():
            for attribute in tied["weight_attr"]:
                weight = tied["module"]
                for name in attribute.split("."):
                    weight = getattr(weight, name)
                yield weight, tied["group"], tied["ranks"]

    # The grid

    def topology(self):
        return self._topo

    def mpu(self):
        return self._grid

    def num_pipeline_stages(self):
        return self._topo.get_dim("pipe")

    def get_additional_losses(self):
        """A dict of losses to report beside the main one; for subclasses."""
        return None

    def compile(self, *args, **kwargs):
        for layer in self.children():
            if isinstance(layer, nn.ModuleDict):
                layer.compile(*args, **kwargs)
        self.forward_funcs = [torch.compile(layer, *args, **kwargs) for layer in self.forward_funcs]

    # Names of checkpoint files

    def ckpt_prefix(self, checkpoints_path, tag):
        return f"{checkpoints_path}/{tag}/module-{self._topo.get_rank_repr(self.global_rank, omit_axes=['data'])}"

    def ckpt_layer_path(self, ckpt_dir, local_layer_idx):
        """The file of a layer, by its index on this stage."""
        place = self._topo.get_rank_repr(self.global_rank)
        layer = f"layer_{local_layer_idx + self._local_start:02d}"
        return f"{ckpt_dir}/{layer}{'-' + place if place else ''}-model_states.pt"

    def ckpt_layer_path_list(self, ckpt_dir, local_layer_idx):
        """The files that there are of it: one for each tensor-parallel rank."""
        layer = f"layer_{local_layer_idx + self._local_start:02d}"
        return sorted(map(str, Path(ckpt_dir).glob(f"{layer}-*model_states.pt")))

    # A file for each layer

    def save_state_dict(self, save_dir, checkpoint_engine, exclude_frozen_params=False):
        """Writes the weights of this stage's layers, as DeepSpeed lays them out: not those that are functions, or used by one
        (forward_fn). The first data-parallel rank writes. Collective."""
        checkpoint_engine.makedirs(save_dir, exist_ok=True)
        for index, layer in self._own_layers():
            with zero.GatheredParameters(layer.parameters()):
                if self._grid.data_parallel_id == 0:
                    frozen = {name for name, parameter in layer.named_parameters() if exclude_frozen_params and not parameter.requires_grad}
                    state = {name: value for name, value in layer.state_dict().items() if name not in frozen}
                    checkpoint_engine.save(state_dict=clone_tensors_for_torch_save(state), path=self.ckpt_layer_path(save_dir, index))

    def load_state_dir(self, load_dir, checkpoint_engine, strict=True):
        """Reads what save_state_dict() or DeepSpeed wrote; an engine's master weights follow. Collective."""
        engine = next((zero.engine_of(parameter)[0] for parameter in self.parameters()), None)
        with engine.writing_weights() if engine is not None else contextlib.nullcontext():
            for index, layer in self._own_layers():
                layer.load_state_dict(checkpoint_engine.load(self._own_file(load_dir, index), map_location="cpu"), strict=strict)
            self._synchronize_tied_modules()

    def _own_layers(self):
        """(index on this stage, module) of those that have a file."""
        for index, spec in enumerate(self._layer_specs[self._local_start:self._local_stop]):
            if isinstance(spec, TiedLayerSpec) and spec.forward_fn is None:
                yield index, self.tied_modules[spec.key]
            elif str(index + self._local_start) in self.fwd_map:
                yield index, self.get_submodule(str(index + self._local_start))

    def _own_file(self, load_dir, index):
        files, ranks = self.ckpt_layer_path_list(load_dir, index), self._grid.slice_parallel_size
        if len(files) != ranks:
            raise made(_core.DataError, f"layer {index + self._local_start} has {len(files) or 'no'} files, not {'one' if ranks == 1 else ranks}",
                       str(load_dir), f"give the folder of one tag, saved by {'one' if ranks == 1 else ranks} tensor-parallel rank{'s' * (ranks > 1)}, "
                       "from a PipelineModule of the same layers")
        return files[self._grid.get_slice_parallel_rank()]


def _class_name(layer):
    if isinstance(layer, LayerSpec):
        return layer.typename.__name__
    return type(layer).__name__ if isinstance(layer, nn.Module) else getattr(layer, "__name__", type(layer).__name__)


def _set_seed(seed):
    torch.manual_seed(seed)
