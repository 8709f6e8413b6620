"""Functions of a sequence that are computed a tile of its tokens at a time (Bekman et al. 2025, arXiv 2506.13996), so that
what they compute in between is there for one tile alone.

    hidden = TiledMLP.apply(mlp_forward, mlp, hidden, shards, None)
    loss = TiledFusedLogitsLoss.apply(loss_of_head, model, hidden, labels, None, shards, None, "mean")

A tile is computed in forward, and again in backward, with the same random numbers. The tiles are nodes of one graph, in which autograd adds
the gradients of a parameter up, so that they arrive once, as those of the whole function would: nobody needs to know which parameters take
part, and `compute_params` may be None. Ranks of ZeRO's stage 3 take equally many tiles of a function that calls modules of its own.

A sequence of n tokens has ceil(n / ceil(n / shards)) tiles, of which the last may be shorter, as torch.chunk has it.
"""

import torch

from deepspeed.runtime.activation_checkpointing.checkpointing import get_cuda_rng_tracker
from tessera.recompute import recomputed


def _of_tiles(function, tensors, dim, shards):
    """function(a tile of each of the tensors), for each tile."""
    tiles = zip(*(torch.chunk(tensor, shards, dim) for tensor in tensors), strict=True)
    return [recomputed(function, tile, {}, get_cuda_rng_tracker(), []) for tile in tiles]


_REDUCTIONS = {None: lambda outputs: outputs, "mean": torch.mean, "sum": torch.sum}


def _reduction(name, valid):
    if name not in valid:
        raise ValueError(f"unknown reduction {name!r}: valid values are {', '.join(map(repr, valid))}")
    return _REDUCTIONS[name]


class TiledMLP:
    """As an autograd function of DeepSpeed's, by its apply."""

    @staticmethod
    def apply(fn, self, x, shards, compute_params):
        """fn(self, x) of x (…, tokens, features), which gives as many tokens."""
        return torch.cat(_of_tiles(lambda tile: fn(self, tile), [x], -2, shards), dim=-2)


class SequenceTiledCompute:
    """sequence_tiled_compute with its dicts laid out: the keys of what is cut and of what is passed, and the values of both, in this order."""

    @staticmethod
    def apply(fn, seqlen, shards, keys_to_shard, keys_to_pass, grad_requiring_tensor_key, compute_params, output_unshard_dimension,
              output_reduction, *args):
        reduce = _reduction(output_reduction, tuple(_REDUCTIONS))
        cut, passed = args[:len(keys_to_shard)], dict(zip(keys_to_pass, args[len(keys_to_shard):], strict=True))
        for key, tensor in zip(keys_to_shard, cut, strict=True):
            if tensor.shape[1] != seqlen:
                raise ValueError(f"{key} has {tensor.shape[1]} tokens in its dimension 1, and seqlen is {seqlen}")
        outputs = _of_tiles(lambda *tile: fn(**dict(zip(keys_to_shard, tile)), **passed), cut, 1, shards)
        together = torch.stack if output_unshard_dimension == 0 else torch.cat
        return reduce(together(outputs, dim=output_unshard_dimension))


def sequence_tiled_compute(fn, seqlen, shards, kwargs_to_shard, kwargs_to_pass, grad_requiring_tensor_key, compute_params=None,
                           output_unshard_dimension=1, output_reduction="mean"):
    """fn(**kwargs_to_shard, **kwargs_to_pass), of which the former are cut, (rows, seqlen tokens, …) each.

    Outputs are put together along output_unshard_dimension; 0: they are numbers, of which a vector is made. output_reduction: None, "mean" or
    "sum", of all their elements; the mean of tiles' means is not that of the whole where tiles differ in what they count. Whatever requires
    a gradient gets one, grad_requiring_tensor_key or not."""
    return SequenceTiledCompute.apply(fn, seqlen, shards, list(kwargs_to_shard), list(kwargs_to_pass), grad_requiring_tensor_key, compute_params,
                                      output_unshard_dimension, output_reduction, *kwargs_to_shard.values(), *kwargs_to_pass.values())


class TiledFusedLogitsLoss:
    """The loss of a language head whose logits there are of one tile at a time."""

    @staticmethod
    def apply(fn, self, x, y, mask, shards, compute_params, output_reduction):
        """x (rows, tokens, …), y (rows, tokens, …) and mask (rows, tokens) or None; fn(self, x, y) or fn(self, x, y, mask), of tokens without
        rows, gives a number. output_reduction: "mean" or "sum" of the tiles' numbers."""
        reduce = _reduction(output_reduction, ("mean", "sum"))
        tensors = [x, y] if mask is None else [x, y, mask]
        if any(tensor.dim() < 2 for tensor in tensors) or any(tensor.shape[:2] != x.shape[:2] for tensor in tensors):
            raise ValueError(f"x, y and mask must begin with the same rows and tokens, and are of {[tuple(tensor.shape) for tensor in tensors]}")
        tokens = [tensor.flatten(0, 1) for tensor in tensors]
        return reduce(torch.stack(_of_tiles(lambda *tile: fn(self, *tile), tokens, 0, shards)))
