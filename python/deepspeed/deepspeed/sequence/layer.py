"""Attention of a program's own between ranks that share sequences (Ulysses)."""

import torch

from deepspeed import _names, comm as dist
from tessera import _core
from tessera.error_report import made
from tessera.shared_sequences import exchanges

_names.serve(__name__)


class DistributedAttention(torch.nn.Module):
    """Around `local_attention`, which sees whole rows of some heads: (query, key, value, …) -> context, in the layout of what it is
    given, tokens first or batch first, with heads and their size behind; the context's last two may be one. rotary_pos_emb: (cosines, sines) of
    whole rows, (batch or 1, length, 1, features), by which the first features of queries and keys are turned before."""

    def __init__(self, local_attention, sequence_process_group, scatter_idx=2, gather_idx=0, sp_stream=None):
        super().__init__()
        if scatter_idx != 2 or gather_idx not in (0, 1):
            raise made(_core.UsageError, f"heads are dimension {scatter_idx} and tokens {gather_idx}", "DistributedAttention",
                       "use scatter_idx=2, and gather_idx=0 or 1")
        self.local_attn, self.spg = local_attention, sequence_process_group
        self.scatter_idx, self.gather_idx = scatter_idx, gather_idx

    def forward(self, query, key, value, batch_dim_idx, rotary_pos_emb=None, *args, **kwargs):
        def batch_first(x):
            return x if batch_dim_idx == 0 else x.transpose(0, 1)

        def attended(query, key, value):
            if rotary_pos_emb is not None:
                query, key = (_turned(x, *map(batch_first, rotary_pos_emb)) for x in (query, key))
            return self.local_attn(query, key, value, *args, **kwargs)

        if dist.get_world_size(self.spg) == 1:
            return attended(query, key, value)
        query, key, value = map(batch_first, (query, key, value))
        by_queries, by_keys = exchanges(self.spg, query.shape[1], query.shape[2], key.shape[2])
        size = value.shape[3]
        whole = [batch_first(each) for each in (by_queries.to_heads(query), by_keys.to_heads(key), by_keys.to_heads(value))]
        context = batch_first(attended(*whole))
        own = by_queries.to_tokens(context.unflatten(2, (-1, size)) if context.dim() == 3 else context)
        return batch_first(own.flatten(2) if context.dim() == 3 else own)


def _turned(x, cosines, sines):
    """Su et al. 2021, "RoFormer", with the two halves of the features as pairs; those behind them stay."""
    features = cosines.shape[-1]
    first, second = x[..., :features].chunk(2, -1)
    turned = x[..., :features] * cosines + torch.cat((-second, first), -1) * sines
    return torch.cat((turned, x[..., features:]), -1)
