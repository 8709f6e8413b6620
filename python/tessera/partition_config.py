"""What a program says itself of which layers tensor ranks cut, and how: `tensor_parallel.partition_config` and `preset_model`, as DeepSpeed's
AutoTP has them (deepspeed/module_inject/autotp_config.py). tensor_parallel.py cuts by it.
"""

import re
import typing

import torch

from tessera import _core
from tessera.error_report import made

KEY = "tensor_parallel.partition_config"
_KEYS = ("layer_specs", "use_default_specs", "strict_mode", "tp_size", "embedding_partition_dim", "lm_head_patterns")
_KEYS_OF_A_SPEC = ("patterns", "partition_type", "shape", "partition_dim", "model_types", "gather_output", "grad_allreduce")
_STYLES = {"column": "colwise", "row": "rowwise", "skip": None}


class Rule(typing.NamedTuple):
    """Of layers whose weight's name a pattern matches, from its beginning. The first rule that matches counts."""

    patterns: tuple
    style: typing.Optional[str]  # tensor_parallel.py's; None: the layer stays whole
    stacked: int = 1  # matrices that lie one after the other along the cut dimension, each of which is cut
    model_types: tuple = ()  # … of these models alone; of all, where there are none

    def matches(self, name, model_type):
        of_it = not self.model_types or str(model_type).lower() in self.model_types
        return of_it and any(re.match(pattern, name) for pattern in self.patterns)


class PartitionPlan:
    """The rules, of one model. As tensor_parallel.TransformersPlan."""

    def __init__(self, rules, is_strict, model_type):
        self._rules, self._is_strict, self._model_type = rules, is_strict, model_type

    def style_of_parameter(self, path):
        """Of one that a layer has beside weight and bias: rules know none."""

    def style_of_module(self, path, module):
        """(style, how many are stacked), or None for what stays whole."""
        weight = module._parameters.get("weight")
        if weight is None:
            return None
        is_matrix = len(getattr(weight, "ds_shape", weight.shape)) == 2
        rule = next((rule for rule in self._rules if rule.matches(f"{path}.weight", self._model_type)), None)
        if rule is None and self._is_strict and isinstance(module, torch.nn.Linear):
            raise _refused(f"no rule is for '{path}.weight', and strict_mode asks for one for each linear layer", "add a rule for it, or take strict_mode out")
        if rule is None or rule.style is None or not (is_matrix or rule.style == "replicated_with_grad_allreduce"):
            return None
        if isinstance(module, torch.nn.Embedding):
            return "embedding_rowwise", 1
        return rule.style, rule.stacked


def plan_of(model, config):
    """None where the configuration says nothing, or names a preset and the model says more itself. ConfigError for what is not understood."""
    block = config.get("tensor_parallel") if isinstance(config.get("tensor_parallel"), dict) else {}
    given, preset = block.get("partition_config"), block.get("preset_model")
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if not given:
        known = preset or (model_type if model_type in PRESETS else None)
        return PartitionPlan(PRESETS[known], False, model_type) if known and not getattr(model, "_tp_plan", None) else None
    _check_keys(given, _KEYS, "")
    rules = [_rule_of(spec) for spec in given.get("layer_specs", [])]
    if preset and given.get("use_default_specs", True):
        rules += PRESETS[preset]
    return PartitionPlan(rules, given.get("strict_mode") is True, model_type)


def _check_keys(block, known, where):
    for key in block:
        if key not in known:
            raise _refused(f"unknown key '{key}'{where}", f"use some of {', '.join(known)}")


def _rule_of(spec):
    _check_keys(spec, _KEYS_OF_A_SPEC, " in a rule of 'layer_specs'")
    patterns, kind = spec.get("patterns", []), str(spec.get("partition_type", "column")).lower()
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise _refused(f"'{pattern}' is not a regular expression: {error}", "write one of Python's module re, such as '.*\\.o_proj\\.weight$'") from None
    if kind not in _STYLES:
        raise _refused(f"'partition_type' is '{kind}'", "use row, column or skip")
    stacked, are_alike = _stacked(spec, kind)
    style = _STYLES[kind]
    if kind == "skip" and spec.get("grad_allreduce"):
        style = "replicated_with_grad_allreduce"
    elif kind == "column" and (spec.get("gather_output") or not are_alike):
        style, stacked = "colwise_gather_output", 1  # what lies one after the other is so again when it is put together
    elif not are_alike:
        raise _refused(f"the shape {spec['shape']} of a row-parallel layer has parts of different sizes", "give as many rules, or 'skip' the layer")
    return Rule(tuple(patterns), style, stacked, tuple(str(each).lower() for each in spec.get("model_types") or ()))


def _stacked(spec, kind):
    """(how many matrices lie one after the other where the layer is cut, whether they are alike): of [3, -1] three, of [[40, 8, 8], -1] three
    that are not."""
    shape, default = spec.get("shape"), {"column": 0, "row": 1, "skip": 0}[kind]
    dim = spec.get("partition_dim", default)
    if shape is None:
        if dim not in (None, default):
            raise _refused(f"'partition_dim' is {dim} of a {kind}-parallel layer without a 'shape'", f"use {default}")
        return 1, True
    numbers = shape if isinstance(shape, (list, tuple)) else ()
    dim = default if dim is None else dim
    if not isinstance(dim, int) or not 0 <= dim < len(numbers):
        raise _refused(f"the shape {shape} has no dimension {dim} to cut", "give a list of numbers, such as [3, -1], and the 'partition_dim' in it")
    if numbers[dim + 1:-1]:
        raise _refused(f"the shape {shape} has more than the inputs behind the dimension that is cut", "order the rule's shape so that it is the last but one")
    if isinstance(numbers[dim], (list, tuple)):
        return len(numbers[dim]), len(set(numbers[dim])) == 1
    before = numbers[default:dim]  # of [experts, -1, inputs] the experts
    stacked = 1
    for number in (*before, *([] if numbers[dim] == -1 else [numbers[dim]])):
        if not isinstance(number, int) or number < 1:
            raise _refused(f"the shape {shape} is not understood", "say how many lie one after the other where it is cut, as in [3, -1]")
        stacked *= number
    return stacked, True


def _refused(what, fix):
    return made(_core.ConfigError, what, KEY, fix)


# ---- DeepSpeed's presets


def _rules(*, column=(), row=(), skip=(), stacked=()):
    """By names of layers; stacked: of column-parallel ones, how many lie one after the other."""
    found = [(skip, None, 1), *(((name,), "colwise", count) for name, count in stacked), (column, "colwise", 1), (row, _STYLES["row"], 1)]
    return [Rule(tuple(rf".*\.{name}\.weight$" for name in names), style, count) for names, style, count in found if names]


_SEPARATE = {"column": (r"self_attn\.[qkv]_proj", r"mlp\.(?:up|gate)_proj"), "row": (r"self_attn\.o_proj", r"mlp\.down_proj")}
_OF_HEADS_IN_TURN = {"column": (r"self_attention\.query_key_value", r"mlp\.dense_h_to_4h"),
                     "row": (r"self_attention\.dense", r"mlp\.dense_4h_to_h")}
PRESETS = {
    "llama": _rules(**_SEPARATE),
    "qwen2": _rules(**_SEPARATE),
    "bloom": _rules(**_OF_HEADS_IN_TURN),
    "chatglm": _rules(row=_OF_HEADS_IN_TURN["row"], stacked=((r"self_attention\.query_key_value", 3), (r"mlp\.dense_h_to_4h", 2))),
    "phi3": _rules(row=_SEPARATE["row"], stacked=((r"self_attn\.qkv_proj", 3), (r"mlp\.gate_up_proj", 2))),
    "mixtral": _rules(column=(r"self_attn\.[qkv]_proj", r"block_sparse_moe\.experts\.\d+\.w[13]"),
                      row=(r"self_attn\.o_proj", r"block_sparse_moe\.experts\.\d+\.w2")),
    "deepseek_v2": _rules(column=(r"self_attn\.(?:q|kv)_b_proj", r"mlp\.(?:experts\.\d+|shared_experts)\.(?:up|gate)_proj"),
                          row=(r"self_attn\.o_proj", r"mlp\.(?:experts\.\d+|shared_experts)\.down_proj")),
}
