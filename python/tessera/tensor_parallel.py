"""A model over the ranks of a tensor axis, as a plan says: the one that transformers' models bring, or a configuration's rules
(partition_config.py).

Each layer of the plan keeps this rank's part of its weights, and exchanges what others need (tessera/nn/tensor_axis.h). Heads and features
need not divide; where there are fewer key heads than ranks, several ranks hold the same one. What the plan does not name is whole on every
rank, where it computes the same.
"""

import hashlib
import re
import typing

import torch
import torch.distributed as dist

from tessera import _core, attention_heads
from tessera.error_report import made
from tessera.nested_tensors import tensors_in
from tessera.part_randomness import PartRandomness

KEY = "tensor_parallel.autotp_size"


def tp_model_init(model, tp_size, dtype, config=None, **unused):
    """DeepSpeed's: initialize() will cut the model over so many ranks. Returns the model, with parameters of this dtype."""
    del config, unused
    vars(model)["tessera_tp_size"] = tp_size  # until initialize()
    return model.to(dtype) if dtype is not None else model


def set_autotp_mode(training=False):
    """DeepSpeed's: a model is cut for training and for evaluation alike."""
    del training


def size_for(model, config):
    """The ranks over which a model is to be cut: by tp_model_init(), else by the configuration; 1: it is not."""
    block = config.get("tensor_parallel") if isinstance(config.get("tensor_parallel"), dict) else {}
    groups = [block[key] for key in ("tp", "tensor_parallel") if isinstance(block.get(key), dict)]
    sizes = [vars(model).pop("tessera_tp_size", 0), block.get("autotp_size", 0), *(group.get("tp_size", 1) for group in groups)]
    return max(size if isinstance(size, int) else 0 for size in (1, *sizes))


class TransformersPlan:
    """{pattern of the names of modules and parameters: style}."""

    def __init__(self, styles):
        self._styles = [(re.compile(re.escape(pattern).replace(r"\*", r"[^.]+") + r"\Z"), style) for pattern, style in styles.items()]

    def style_of_parameter(self, path):
        """(style, how many are stacked), or None for what stays whole."""
        return next(((style, 1) for pattern, style in self._styles if pattern.match(path)), None)

    def style_of_module(self, path, module):
        return self.style_of_parameter(path)


def cut(model, mesh, plan=None):
    """Collective. Every rank brings the whole model; rank 0's values are taken. plan: None: the model's own. UsageError for a model without a
    plan, and for what its plan asks that cannot be done."""
    axis = _core.TensorAxis(group=mesh.group(["tp"]), key=KEY)
    if plan is None:
        styles = getattr(model, "_tp_plan", None)
        if not styles:
            raise _refused(f"{type(model).__name__} does not say how it is cut: it has no tensor-parallel plan", model)
        plan = TransformersPlan(styles)
    take_values_of_rank_0(model)
    modules = dict(model.named_modules())
    within = {id(each) for module in modules.values() if is_adapted(module) for each in module.modules() if each is not module}
    found = [(_PARAMETER_MAKERS, path, parameter, plan.style_of_parameter(_of_the_base(path))) for path, parameter in model.named_parameters()]
    found += [(_MAKERS, path, module, plan.style_of_module(_of_the_base(path), adapted_of(module))) for path, module in modules.items()
              if id(module) not in within]
    found = [each for each in found if each[-1] is not None]
    found.sort(key=lambda each: each[0] is _MAKERS and each[-1][0] == _SHARED)  # last: it looks at the layers beside it
    for makers, path, thing, (style, stacked) in found:
        make = makers.get(style)
        if make is None:
            raise _refused(f"the plan of {type(model).__name__} asks for the style '{style}' for '{path}'", path)
        make(adapted_of(thing), path, modules[path.rpartition(".")[0]], axis.called(path), **({} if stacked == 1 else {"stacked": stacked}))
        if is_adapted(thing):
            _cut_adapter(thing, path, axis.called(path))
    if not found:
        raise _refused(f"the plan of {type(model).__name__} names no module that it has", model)
    if _drops(model):
        _part_randomness(modules.values(), PartRandomness(axis.rank))
    for path, module in modules.items():
        _cut_what_is_tied(module, path, axis)
        columns = [child for child in map(adapted_of, module.children()) if type(child) is ColumnLinear]
        if columns:
            attention_heads.tell(module, axis, are_in_one=any(column.stacked > 1 for column in columns))


# ---- dropout


def _drops(model):
    said = getattr(getattr(model, "config", None), "__dict__", {})
    return any(isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules()) or any(
        isinstance(value, float) and value > 0 for name, value in said.items() if "drop" in name)


def _part_randomness(modules, randomness):
    for module in modules:
        if isinstance(module, (ColumnLinear, RowLinear)):
            module.randomness = randomness
        if not is_adapted(module) and any(type(adapted_of(child)) is ColumnLinear for child in module.children()):  # where no layer adds up
            module.register_forward_hook(lambda *_: randomness.leave(), always_call=True)
        if is_adapted(module):
            for dropout in module.lora_dropout.values():
                randomness.of_module(dropout, is_own=isinstance(module.base_layer, RowLinear))


# ---- PEFT's layers, which have the model's within


def is_adapted(thing):
    return isinstance(thing, torch.nn.Module) and isinstance(getattr(thing, "base_layer", None), torch.nn.Module)


def adapted_of(thing):
    """The layer of the model; a thing that nothing adapts, itself."""
    return thing.base_layer if is_adapted(thing) else thing


def _of_the_base(path):
    """As the model's own plan names it."""
    return path.removeprefix("base_model.model.")


def _cut_adapter(layer, path, axis):
    """Of LoRA one matrix is cut as the layer is; the other is whole on every rank, where it gets the whole gradient."""
    base = layer.base_layer
    is_lora = isinstance(getattr(layer, "lora_A", None), torch.nn.ModuleDict) and not len(getattr(layer, "lora_magnitude_vector", ()))
    if not is_lora or not isinstance(base, (ColumnLinear, RowLinear)):
        raise _refused(f"'{path}' is adapted by PEFT's {type(layer).__module__.rpartition('.')[2]}.{type(layer).__name__}, which cannot be cut with it unless "
                       "it is plain LoRA of a linear layer", path)
    for name, down in layer.lora_A.items():
        if isinstance(base, RowLinear):
            _cut_inputs(down, f"{path}.lora_A.{name}", axis, base.inputs, base.stacked)
        else:
            _cut_outputs(layer.lora_B[name], f"{path}.lora_B.{name}", axis, type(base), base.outputs, base.stacked)


class Part(typing.NamedTuple):
    """What a rank has of a parameter that is cut, as parameter.tessera_part."""

    axis: _core.TensorAxis
    cut: _core.Cut
    dim: int
    mesh_axis: str
    stacked: int = 1  # matrices that lie one after the other along the dimension, each of which is cut

    def whole(self, own):
        """Collective over the axis."""
        own = own.detach().unflatten(self.dim, (self.stacked, -1)).movedim(self.dim + 1, -1)
        return self.axis.joined(own, self.cut).movedim(-1, self.dim + 1).flatten(self.dim, self.dim + 1).contiguous()

    def of(self, whole):
        begin, end = self.cut.own
        return whole.unflatten(self.dim, (self.stacked, -1)).narrow(self.dim + 1, begin, end - begin).flatten(self.dim, self.dim + 1)


def keep(parameter, axis, cut_of_it, dim, mesh_axis="tp", stacked=1):
    """From now on it is this rank's part; one that two modules share is cut once. Collective where it was made under zero.Init."""
    from tessera import zero  # not at the start: it imports this module

    if parameter is None or hasattr(parameter, "tessera_part"):
        return
    if zero.is_partitioned(parameter):
        zero.made_whole(parameter)
    parameter.tessera_part = Part(axis, cut_of_it, dim, mesh_axis, stacked)
    parameter.data = parameter.tessera_part.of(parameter.data).clone(memory_format=torch.contiguous_format)


def watch_first_batch(model, mesh):
    """Ranks that share each layer must see the same samples: the first forward looks whether they do. UsageError on all of them where they do not."""
    group = mesh.group(["tp"])

    def look(module, args, kwargs):
        hook.remove()
        digests = group.exchange_texts(_digest_of((args, kwargs)), "the batch of ranks that share each layer")
        if len(set(digests)) > 1:
            raise made(_core.UsageError, "the ranks that share each layer (tp) were given different batches", "the first forward",
                       "give the same batch to all of them: sample over engine.dp_world_size ranks, of which this is engine.get_data_parallel_rank()")

    hook = model.register_forward_pre_hook(look, with_kwargs=True)


def _digest_of(inputs):
    digest = hashlib.blake2b()
    for tensor in tensors_in(inputs):
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def is_cut(model):
    return any(hasattr(parameter, "tessera_part") for parameter in model.parameters())


def is_part(parameter, mesh_axis):
    """Is it this rank's part, over that axis?"""
    return hasattr(parameter, "tessera_part") and parameter.tessera_part.mesh_axis == mesh_axis


def ranks_that_cut(model, mesh_axis):
    """Over how many ranks of the axis some of its parameters are cut; 1: none is."""
    return next((parameter.tessera_part.axis.size for parameter in model.parameters() if is_part(parameter, mesh_axis)), 1)


def placements(name, parameter):
    """{axis: (Shard, how many are stacked)} of a parameter of which this rank keeps a part, and Megatron's and GPT-NeoX' layers' {axis: dimension}."""
    del name
    if hasattr(parameter, "tessera_part"):
        part = parameter.tessera_part
        return {part.mesh_axis: (part.cut.shard(part.dim, part.mesh_axis), part.stacked)}
    return {"tp": parameter.partition_dim} if _is_part_of_megatron_s(parameter) else {}


def placements_on(mesh):
    """The same without axes that the mesh has not got: Megatron and GPT-NeoX mark the parameters of layers that nobody shares, too."""
    axes = dict(mesh.axes)
    return lambda name, parameter: {axis: place for axis, place in placements(name, parameter).items() if axis in axes}


def note_parts(model, mesh, where):
    """Of layers of the program's own (Megatron's and GPT-NeoX'), which are this rank's equal parts along `partition_dim`. Collective."""
    if "tp" not in dict(mesh.axes):
        return
    from tessera import zero  # not at the start: it imports this module

    axis = _core.TensorAxis(group=mesh.group(["tp"]), key=where)
    for name, parameter in model.named_parameters():
        if _is_part_of_megatron_s(parameter) and not hasattr(parameter, "tessera_part"):
            if zero.is_partitioned(parameter):
                zero.made_whole(parameter)
            own = parameter.shape[parameter.partition_dim]
            parameter.tessera_part = Part(axis, axis.cut(axis.size * own, f"rows of '{name}'"), parameter.partition_dim, "tp")


def _is_part_of_megatron_s(parameter):
    return getattr(parameter, "tensor_model_parallel", False) or getattr(parameter, "model_parallel", False)


def _refused(what, where):
    return made(_core.UsageError, what, KEY if not isinstance(where, str) else f"the module '{where}'",
                "use a model whose plan cuts linear layers, embeddings and norms, say which layers are cut in "
                "tensor_parallel.partition_config, or use tensor parallelism of size 1")


def take_values_of_rank_0(model):
    """Of what was made under zero.Init, they are so already."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if not hasattr(tensor, "tessera_piece"):
                dist.broadcast(tensor.data, 0)


# ---- layers


class ColumnLinear(torch.nn.Linear):
    """Has some of the outputs, of inputs that every rank has."""

    def forward(self, x):
        if self.training and self.randomness is not None:
            self.randomness.enter()
        return self.product(x)

    def product(self, x):
        weight, bias = self.weight, self.bias
        if self.sharers.size > 1:
            weight, bias = self.sharers.shared_parameter(weight), None if bias is None else self.sharers.shared_parameter(bias)
        return torch.nn.functional.linear(self.axis.into_parts(x), weight, bias)

    randomness = None  # where the model drops nothing


class GatheringLinear(ColumnLinear):
    """… and puts them together."""

    def forward(self, x):
        return self.axis.gathered(self.product(x), self.outputs)


class RowLinear(torch.nn.Linear):
    """Has some of the inputs, of those that every rank has whole, too; every rank gets the outputs."""

    def forward(self, x):
        if x.shape[-1] != self.in_features:
            begin, end = self.inputs.own
            x = self.axis.into_parts(x).unflatten(-1, (self.stacked, -1)).narrow(-1, begin, end - begin).flatten(-2)
        y = self.axis.out_of_parts(torch.nn.functional.linear(x, self.weight))
        if self.randomness is not None:
            self.randomness.leave()
        return y if self.bias is None else y + self.bias

    randomness = None


class SharedKeyLinear(torch.nn.Linear):
    """Whole on every rank: the latents of multi-head latent attention, of which each makes keys and values of its own heads, and behind them
    the part of a key that all heads share."""

    def forward(self, x):
        y = super().forward(x)
        return torch.cat([y[..., :self.latents], self.axis.into_parts(y[..., self.latents:])], -1)


class WordEmbedding(torch.nn.Embedding):
    """Has some of the words."""

    def forward(self, ids):
        padding = -1 if self.padding_idx is None else self.padding_idx
        return _core.embedded_of_cut(ids, self.weight, padding, self.axis, self.words)


def _become(module, kind, base, path, **own):
    _check_kind(module, base, path)
    module.__class__ = kind
    vars(module).update(own)


def _check_kind(module, base, path):
    if type(module).forward is not base.forward:
        raise _refused(f"'{path}' is of the class {type(module).__name__}, whose forward is its own", path)


def _column(module, path, parent, axis, stacked=1):
    features = _of_each(module, "out_features", path, stacked)
    _cut_outputs(module, path, axis, ColumnLinear, attention_heads.cut_of(path, parent, axis, features), stacked)


def _of_each(module, features, path, stacked):
    count = getattr(module, features, 0)  # what has none is refused by _become
    if count % stacked:
        raise _refused(f"the {count} {features} of '{path}' are not those of {stacked} matrices", path)
    return count // stacked


def _cut_outputs(module, path, axis, kind, by_heads, stacked=1):
    _check_kind(module, torch.nn.Linear, path)
    outputs = by_heads or axis.cut(module.out_features // stacked, f"outputs of '{path}'")
    _become(module, kind, torch.nn.Linear, path, axis=axis, outputs=outputs, sharers=axis.sharers(outputs), stacked=stacked,
            out_features=stacked * (outputs.own[1] - outputs.own[0]))
    keep(module.weight, axis, outputs, 0, stacked=stacked)
    keep(module.bias, axis, outputs, 0, stacked=stacked)


def _gathering(module, path, parent, axis):
    _cut_outputs(module, path, axis, GatheringLinear, by_heads=None)


def _row(module, path, parent, axis, stacked=1):
    features = _of_each(module, "in_features", path, stacked)
    _cut_inputs(module, path, axis, attention_heads.cut_of(path, parent, axis, features), stacked)


def _cut_inputs(module, path, axis, by_heads, stacked=1):
    _check_kind(module, torch.nn.Linear, path)
    inputs = by_heads or axis.cut(module.in_features // stacked, f"inputs of '{path}'")
    _become(module, RowLinear, torch.nn.Linear, path, axis=axis, inputs=inputs, stacked=stacked, in_features=stacked * (inputs.own[1] - inputs.own[0]))
    keep(module.weight, axis, inputs, 1, stacked=stacked)


def _splitting(module, path, parent, axis):
    _cut_inputs(module, path, axis, by_heads=None)


def _shared_key(module, path, parent, axis):
    latents = getattr(parent, "kv_lora_rank", None)
    if not isinstance(latents, int):
        raise _refused(f"'{path}' is in {type(parent).__name__}, which has no kv_lora_rank", path)
    _become(module, SharedKeyLinear, torch.nn.Linear, path, axis=axis, latents=latents)


def _words(module, path, parent, axis):
    words = axis.cut(module.num_embeddings, "words")
    _become(module, WordEmbedding, torch.nn.Embedding, path, axis=axis, words=words, num_embeddings=words.own[1] - words.own[0])
    keep(module.weight, axis, words, 0)


_SHARED = "replicated_with_grad_allreduce"


def _shared(module, path, parent, axis):
    """A norm of heads: each rank has seen its own heads' part of the gradient; the whole of it, where heads are put together again."""
    beside = {type(adapted_of(child)) for child in parent.children()}
    if GatheringLinear in beside and ColumnLinear not in beside:
        return
    names = [name for name, parameter in module._parameters.items() if parameter is not None]

    def of_all(name):
        return property(lambda self: self.axis.shared_parameter(self._parameters[name]))
    module.__class__ = type(f"Shared{type(module).__name__}", (type(module),), {name: of_all(name) for name in names})
    vars(module)["axis"] = axis


def _cut_experts(module, path, parent, axis):
    """All experts of a layer, each of which computes with a part of its features: what comes out is a part of a sum."""
    whole = [name for name, parameter in module.named_parameters(recurse=False) if not hasattr(parameter, "tessera_part")]
    if whole or getattr(module, "is_transposed", False):
        what = f"its {whole[0]} is whole" if whole else "its matrices are transposed"
        raise _refused(f"the experts '{path}' cannot be cut: {what}", path)
    forward = type(module).forward

    def in_parts(self, hidden_states, experts, weights):
        return axis.out_of_parts(forward(self, axis.into_parts(hidden_states), experts, axis.into_parts(weights)))
    module.__class__ = type(type(module).__name__, (type(module),), {"forward": in_parts, "__module__": type(module).__module__})


_MAKERS = {"colwise": _column, "colwise_gather_output": _gathering, "colwise_rep": _gathering, "rowwise": _row, "rowwise_split_input": _splitting,
           "embedding_rowwise": _words, _SHARED: _shared, "mla_kv_a_proj": _shared_key, "moe_tp_experts": _cut_experts}


def _cut_what_is_tied(module, path, axis):
    """An embedding whose weight a language head has, which the plan cut."""
    if is_part(getattr(module, "weight", None), "tp") and type(module).forward is torch.nn.Embedding.forward:
        _words(module, path, None, axis.called(path))


# ---- parameters that a plan names itself: of experts, (experts, outputs, inputs)


_ALIGNED = 8  # elements: torch's grouped products take rows of whole 16 bytes


def _keep_of_experts(parameter, path, axis, dim, stacked=1):
    shape = getattr(parameter, "ds_shape", parameter.shape)
    if len(shape) != 3:
        raise _refused(f"'{path}' is of the shape {tuple(shape)}, which is not that of experts", path)
    features = shape[dim] // stacked
    at_once = _ALIGNED if features % _ALIGNED == 0 and features // _ALIGNED >= axis.size else 1
    keep(parameter, axis, axis.cut(features // at_once, f"features of '{path}'").times(at_once), dim, stacked=stacked)


def _columns_of_experts(parameter, path, parent, axis):
    _keep_of_experts(parameter, path, axis, 1)


def _gates_and_columns_of_experts(parameter, path, parent, axis):
    _keep_of_experts(parameter, path, axis, 1, stacked=2)


def _rows_of_experts(parameter, path, parent, axis):
    _keep_of_experts(parameter, path, axis, 2)


_PARAMETER_MAKERS = {"colwise": _columns_of_experts, "packed_colwise": _gates_and_columns_of_experts, "rowwise": _rows_of_experts}


# ---- whole weights


class GatherReplacedLayerParams:
    """DeepSpeed's: within it these parameters are whole on every rank of the axis, and what was written to them is kept. Collective."""

    def __init__(self, params, module, enabled=True):
        del module
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        self._cut = [parameter for parameter in params if enabled and hasattr(parameter, "tessera_part")]

    def __enter__(self):
        self._own = [parameter.data for parameter in self._cut]
        for parameter in self._cut:
            parameter.data = parameter.tessera_part.whole(parameter.data)

    def __exit__(self, *error):
        for parameter, own in zip(self._cut, self._own, strict=True):
            own.copy_(parameter.tessera_part.of(parameter.data))
            parameter.data = own
