"""A model over the ranks of a tensor axis, as the plan says that transformers' models bring: {pattern of module names: style}.

Each layer of the plan keeps this rank's part of its weights, and exchanges what others need (tessera/nn/tensor_axis.h). Heads and features
need not divide; where there are fewer key heads than ranks, several ranks hold the same one. What the plan does not name is whole on every
rank, where it computes the same.
"""

import re
import typing

import torch
import torch.distributed as dist

from tessera import _core
from tessera.error_report import made

KEY = "tensor_parallel.autotp_size"
_KEYS_AND_VALUES = ("k_proj", "v_proj", "key", "value")


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


def cut(model, mesh, plan=None):
    """Collective. Every rank brings the whole model; rank 0's values are taken. UsageError for a model without a plan, and for what its plan
    asks that cannot be done."""
    axis = _core.TensorAxis(group=mesh.group(["tp"]), key=KEY)
    plan = plan if plan is not None else getattr(model, "_tp_plan", None)
    if not plan:
        raise _refused(f"{type(model).__name__} does not say how it is cut: it has no tensor-parallel plan", model)
    take_values_of_rank_0(model)
    styles = [(re.compile(re.escape(pattern).replace(r"\*", r"[^.]+") + r"\Z"), style) for pattern, style in plan.items()]
    modules = dict(model.named_modules())
    found = 0
    for makers, things in ((_PARAMETER_MAKERS, dict(model.named_parameters())), (_MAKERS, modules)):
        for path, thing in things.items():
            style = next((style for pattern, style in styles if pattern.match(path)), None)
            if style is None:
                continue
            make = makers.get(style)
            if make is None:
                raise _refused(f"the plan of {type(model).__name__} asks for the style '{style}' for '{path}'", path)
            make(thing, path, modules[path.rpartition(".")[0]], axis.called(path))
            found += 1
    if not found:
        raise _refused(f"the plan of {type(model).__name__} names no module that it has", model)
    for module in modules.values():
        _tell_heads(module, axis)


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


def is_cut(model):
    return any(hasattr(parameter, "tessera_part") for parameter in model.parameters())


def is_part(parameter, mesh_axis):
    """Is it this rank's part, over that axis?"""
    return hasattr(parameter, "tessera_part") and parameter.tessera_part.mesh_axis == mesh_axis


def ranks_that_cut(model, mesh_axis):
    """Over how many ranks of the axis some of its parameters are cut; 1: none is."""
    return next((parameter.tessera_part.axis.size for parameter in model.parameters() if is_part(parameter, mesh_axis)), 1)


def placements(name, parameter):
    """{axis: (Shard, how many are stacked)} of a parameter of which this rank keeps a part, and Megatron's layers' {axis: dimension}."""
    del name
    if hasattr(parameter, "tessera_part"):
        part = parameter.tessera_part
        return {part.mesh_axis: (part.cut.shard(part.dim, part.mesh_axis), part.stacked)}
    return {"tp": parameter.partition_dim} if getattr(parameter, "tensor_model_parallel", False) else {}


def _refused(what, where):
    return made(_core.UsageError, what, KEY if not isinstance(where, str) else f"the module '{where}'",
                "use a model whose plan cuts linear layers, embeddings and norms, or tensor parallelism of size 1")


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
        weight, bias = self.weight, self.bias
        if self.sharers.size > 1:
            weight, bias = self.sharers.shared_parameter(weight), None if bias is None else self.sharers.shared_parameter(bias)
        return torch.nn.functional.linear(self.axis.into_parts(x), weight, bias)


class GatheringLinear(ColumnLinear):
    """… and puts them together."""

    def forward(self, x):
        return self.axis.gathered(super().forward(x), self.outputs)


class RowLinear(torch.nn.Linear):
    """Has some of the inputs; every rank gets the outputs."""

    def forward(self, x):
        y = self.axis.out_of_parts(torch.nn.functional.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class SplittingLinear(RowLinear):
    """… of inputs that every rank has whole."""

    def forward(self, x):
        begin, end = self.inputs.own
        return super().forward(self.axis.into_parts(x).narrow(-1, begin, end - begin))


class WordEmbedding(torch.nn.Embedding):
    """Has some of the words."""

    def forward(self, ids):
        padding = -1 if self.padding_idx is None else self.padding_idx
        return _core.embedded_of_cut(ids, self.weight, padding, self.axis, self.words)


def _become(module, kind, base, path, **own):
    if type(module).forward is not base.forward:
        raise _refused(f"'{path}' is of the class {type(module).__name__}, whose forward is its own", path)
    module.__class__ = kind
    vars(module).update(own)


def _column(module, path, parent, axis):
    _cut_outputs(module, path, axis, ColumnLinear, _cut_of_attention(path, parent, axis, module.out_features))


def _cut_outputs(module, path, axis, kind, by_heads):
    outputs = by_heads or axis.cut(module.out_features, f"outputs of '{path}'")
    _become(module, kind, torch.nn.Linear, path, axis=axis, outputs=outputs, sharers=axis.sharers(outputs),
            out_features=outputs.own[1] - outputs.own[0])
    keep(module.weight, axis, outputs, 0)
    keep(module.bias, axis, outputs, 0)


def _gathering(module, path, parent, axis):
    _cut_outputs(module, path, axis, GatheringLinear, by_heads=None)


def _row(module, path, parent, axis):
    _cut_inputs(module, path, axis, RowLinear, _cut_of_attention(path, parent, axis, module.in_features))


def _cut_inputs(module, path, axis, kind, by_heads):
    inputs = by_heads or axis.cut(module.in_features, f"inputs of '{path}'")
    _become(module, kind, torch.nn.Linear, path, axis=axis, inputs=inputs, in_features=inputs.own[1] - inputs.own[0])
    keep(module.weight, axis, inputs, 1)


def _splitting(module, path, parent, axis):
    _cut_inputs(module, path, axis, SplittingLinear, by_heads=None)


def _words(module, path, parent, axis):
    words = axis.cut(module.num_embeddings, "words")
    _become(module, WordEmbedding, torch.nn.Embedding, path, axis=axis, words=words, num_embeddings=words.own[1] - words.own[0])
    keep(module.weight, axis, words, 0)


def _shared(module, path, parent, axis):
    """A norm of heads: each rank has seen its own heads' part of the gradient."""
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
           "embedding_rowwise": _words, "replicated_with_grad_allreduce": _shared, "moe_tp_experts": _cut_experts}


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


# ---- heads


def _heads_of(attention):
    """(heads, key heads) of the whole, and a head's size; None for another module."""
    config, size = getattr(attention, "config", None), getattr(attention, "head_dim", getattr(attention, "head_size", None))
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(size, int) or heads is None:
        return None
    return heads, getattr(config, "num_key_value_heads", None) or heads, size


def _cut_of_attention(path, attention, axis, features):
    """The cut by heads of features of an attention layer; None for another layer's."""
    known = _heads_of(attention)
    if known is None:
        return None
    heads, key_heads, size = known
    query, key = axis.cut_heads(heads, key_heads)
    is_key = path.rpartition(".")[2] in _KEYS_AND_VALUES
    if features == (key_heads if is_key else heads) * size:
        return (key if is_key else query).times(size)
    if heads == key_heads and features == 3 * heads * size:
        return query.times(3 * size)  # of each head its query, key and value, as GPT-NeoX has them
    raise _refused(f"'{path}' has {features} features, which are not its {heads} heads of {size}", path)


def _tell_heads(attention, axis):
    """What an attention module says of its heads is from now on said of this rank's."""
    known = _heads_of(attention)
    if known is None or not any(type(child) is ColumnLinear for child in attention.children()):
        return
    query, key = (cut.own[1] - cut.own[0] for cut in axis.cut_heads(*known[:2]))
    for name, value in (("num_key_value_groups", query // key), ("num_heads", query), ("num_attention_heads", query),
                        ("num_key_value_heads", key)):
        if name in vars(attention):
            setattr(attention, name, value)


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
