"""transformers' mixtures over ranks that share out the experts, as DeepSpeed's block expert_parallel asks for it.

transformers has the experts of a layer in one module: tensors whose first dimension counts them, and forward(tokens, experts, weights). Each rank keeps
its experts' part of those tensors, and the module runs as it is on the tokens that come for them (nn/expert_dispatch.h). Router, shared experts and
whatever else the layer has remain the model's own.
"""

import inspect
import re

import torch

from tessera import _core, tensor_parallel
from tessera.error_report import made

BLOCK = "expert_parallel"
KEY = f"{BLOCK}.autoep_size"
_TAKES = (["hidden_states", "top_k_index", "top_k_weights"], ["hidden_states", "router_indices", "routing_weights"])


def block_of(config):
    """The configuration's block where it is on; {}: it is not."""
    block = config.get(BLOCK)
    return block if isinstance(block, dict) and block.get("enabled") is True else {}


def size_for(config):
    """Over how many ranks the experts are shared out; 1: each rank has all."""
    size = block_of(config).get("autoep_size", 1)
    return size if isinstance(size, int) else 1  # what else it is, the engine's configuration refuses


def refuse_beside(others):
    """UsageError for what is asked for besides, {name: is it}."""
    for name, is_asked_for in others.items():
        if is_asked_for:
            raise made(_core.UsageError, f"experts are to be shared out, beside {name}: not both in Tessera yet", KEY, f"leave {BLOCK} out, or {name}")


def share(model, mesh, block):
    """Collective. Every rank brings the whole model; rank 0's values are taken. UsageError for a model without such experts, and for experts that
    do not go round."""
    found = {path: module for path, module in model.named_modules() if _are_experts(module) and _is_asked_for(path, block)}
    if not found:
        raise _refused(model, block)
    group = mesh.group(["ep"])
    axis = _core.ExpertAxis(group, key=KEY)
    parts = _core.TensorAxis(group=group, key=KEY)
    tensor_parallel.take_values_of_rank_0(model)
    for path, module in found.items():
        begin, end = axis.own(module.num_experts)
        own = parts.called(path).cut(module.num_experts, "experts")
        for parameter in _tensors_of_experts(module):
            tensor_parallel.keep(parameter, parts, own, 0, mesh_axis="ep")
            parameter.allreduce, parameter.group_name = False, f"ep_size_{axis.size}"  # DeepSpeed's marks of an expert
        vars(module).update(tessera_axis=axis, tessera_experts=module.num_experts, num_experts=end - begin)
        module.__class__ = _sharing(type(module))


def _are_experts(module):
    count = getattr(module, "num_experts", None)
    return (isinstance(count, int) and list(inspect.signature(type(module).forward).parameters)[1:] in _TAKES
            and len(_tensors_of_experts(module)) > 0)


def _tensors_of_experts(module):
    def has_one_for_each(shape):
        return len(shape) > 1 and shape[0] == module.num_experts
    return [each for each in module.parameters(recurse=False) if has_one_for_each(getattr(each, "ds_shape", each.shape))]


def _is_asked_for(path, block):
    """Whether moe_layer_pattern matches the name of its layer, and expert_pattern is its own name, where they are given."""
    layer, _, name = path.rpartition(".")
    pattern, own = block.get("moe_layer_pattern"), block.get("expert_pattern")
    return (pattern is None or re.fullmatch(pattern, layer) is not None) and own in (None, name)


def _refused(model, block):
    named = [f"{key} {block[key]!r}" for key in ("moe_layer_pattern", "expert_pattern") if block.get(key) is not None]
    what = f"{type(model).__name__} has no experts in tensors of their own" + (f", of {' and '.join(named)}" if named else "")
    return made(_core.UsageError, what, BLOCK,
                f"use a mixture of transformers 5, whose experts' forward takes ({', '.join(_TAKES[0])}), or deepspeed.moe.layer.MoE with its ep_size")


_kinds = {}  # class of experts -> that which sends their tokens


def _sharing(kind):
    if kind not in _kinds:
        def forward(self, hidden_states, experts, weights):
            def run(rows, of_experts):
                return _run(self, kind.forward, rows, of_experts)
            return _core.through_experts_at_once(hidden_states, experts, weights, self.tessera_experts, self.tessera_axis, run)
        _kinds[kind] = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return _kinds[kind]


def _run(module, forward, rows, of_experts):
    """The module on rows in order of this rank's experts, so many for each."""
    if rows.shape[0] == 0:  # its tensors have a gradient all the same
        return rows + sum(parameter.flatten()[:0].sum() for parameter in module.parameters())
    experts = torch.arange(module.num_experts, device=rows.device).repeat_interleave(torch.tensor(of_experts, device=rows.device))
    return forward(module, rows, experts.unsqueeze(1), rows.new_ones(rows.shape[0], 1))
