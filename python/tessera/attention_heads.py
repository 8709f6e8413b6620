"""The heads of attention layers over the ranks of a tensor axis: which features of a matrix are whose, and what a layer that has some heads is to
know. A layer is known by what it says of its heads, itself or in transformers' configuration."""

import copy
import functools
import inspect

from tessera import _core
from tessera.error_report import made

_KEYS_AND_VALUES = ("k_proj", "v_proj", "key", "value", "wk", "wv", "k", "v", "to_k", "to_v")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attention_heads_per_partition")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_multi_query_groups_per_partition")
_SIZES = ("head_dim", "head_size", "hidden_size_per_attention_head")
_WIDTHS = ("hidden_size", "embed_dim", "d_model", "all_head_size", "inner_dim", "projection_size", "hidden_size_per_partition", "split_size")


def _first(thing, names):
    return next((value for value in (getattr(thing, name, None) for name in names) if isinstance(value, int)), None)


def _config_of(attention):
    """transformers', which says how many heads there are; None: the layer says it itself."""
    config = getattr(attention, "config", None)
    return config if getattr(config, "num_attention_heads", None) else None


def _heads_of(attention):
    """(heads, key heads) of the whole, and a head's size, None where that is not said; None for another module."""
    size, config = _first(attention, _SIZES), _config_of(attention)
    heads = _first(attention, _HEADS) if config is None else _first(config, ("num_attention_heads",))
    if heads is None or (size is None and _first(attention, _HEADS) is None):
        return None
    key_heads = _first(attention, _KEY_HEADS) if config is None else _first(config, ("num_key_value_heads",))
    return heads, key_heads or heads, size


def cut_of(path, attention, axis, features):
    """The cut by heads of features of an attention layer; None for another layer's."""
    known = _heads_of(attention)
    if known is None:
        return None
    heads, key_heads, size = known
    query, key = axis.cut_heads(heads, key_heads)
    count, cut_of_them = (key_heads, key) if path.rpartition(".")[2] in _KEYS_AND_VALUES else (heads, query)
    # Where there are as many key heads, also of each head its query, key and value (GPT-NeoX), or parts of other sizes (latent attention).
    if features == count * size if size is not None and heads != key_heads else features % count == 0:
        return cut_of_them.times(features // count)
    raise made(_core.UsageError, f"'{path}' has {features} features, which are not its {heads} heads{'' if size is None else f' of {size}'}",
               f"the module '{path}'", "take it out of the plan, or use tensor parallelism of size 1")


def tell(attention, axis, are_in_one):
    """What an attention layer says of its heads is from now on said of this rank's. are_in_one: whether queries, keys and values are in one
    matrix. Another layer says nothing."""
    known = _heads_of(attention)
    if known is None:
        return
    heads, key_heads, size = known
    of_queries, of_keys = axis.cut_heads(heads, key_heads)
    query, key = (cut.own[1] - cut.own[0] for cut in (of_queries, of_keys))
    own = {"num_key_value_groups": query // key, **dict.fromkeys(_HEADS, query), **dict.fromkeys(_KEY_HEADS, key)}
    if _config_of(attention) is None:  # transformers' own do without
        own |= {name: query * size for name in _WIDTHS if size is not None and vars(attention).get(name) == heads * size}
    elif are_in_one:  # where it looks for them
        attention.config = copy.copy(attention.config)
        attention.config.num_attention_heads, attention.config.num_key_value_heads = query, key
    for name, value in own.items():
        if name in vars(attention):
            setattr(attention, name, value)
    if "alibi" in inspect.signature(attention.forward).parameters:
        attention.register_forward_pre_hook(functools.partial(_with_own_alibi, heads, of_queries.own), with_kwargs=True)


def _with_own_alibi(heads, own, attention, args, kwargs):
    """Of BLOOM's biases, (batch × heads, 1, length), those of this rank's heads."""
    bound = inspect.signature(attention.forward).bind(*args, **kwargs)
    alibi = bound.arguments["alibi"]
    bound.arguments["alibi"] = alibi.unflatten(0, (-1, heads))[:, own[0]:own[1]].flatten(0, 1)
    return bound.args, bound.kwargs
