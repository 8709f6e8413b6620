"""Language models of which only a configuration's rules say how they are cut over tensor ranks: run in tensor_parallel_runs.py."""

import types

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

WORDS, WIDTH, HEADS, SIZE, INNER = 53, 30, 6, 5, 45


class Attention(torch.nn.Module):
    """Queries, keys and values in one matrix, one after the other."""

    def __init__(self, key_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim, self.d_model = HEADS, key_heads, SIZE, HEADS * SIZE
        self.sizes = [HEADS * SIZE, key_heads * SIZE, key_heads * SIZE]
        self.qkv = torch.nn.Linear(WIDTH, sum(self.sizes))
        self.q_norm = torch.nn.RMSNorm(SIZE)
        self.out = torch.nn.Linear(HEADS * SIZE, WIDTH)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1) if self.n_kv_heads == self.n_heads else self.qkv(x).split(self.sizes, -1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        found = scaled_dot_product_attention(self.q_norm(q), k, v, is_causal=True, enable_gqa=self.n_kv_heads != self.n_heads)
        return self.out(found.transpose(1, 2).reshape(*x.shape[:-1], self.d_model))


class Block(torch.nn.Module):
    def __init__(self, key_heads):
        super().__init__()
        self.attention, self.first, self.second = Attention(key_heads), torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.gate_up, self.down = torch.nn.Linear(WIDTH, 2 * INNER), torch.nn.Linear(INNER, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.first(x))
        gate, up = self.gate_up(self.second(x)).chunk(2, -1)
        return x + self.down(silu(gate) * up)


class Language(torch.nn.Module):
    def __init__(self, key_heads=HEADS, is_tied=False):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(key_heads) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, input_ids, labels):
        x = self.words(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)[:, :-1]
        return types.SimpleNamespace(loss=cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()))


def rules(*more, **settings):
    """The documented form (DeepSpeed's tutorial on AutoTP training)."""
    return {"use_default_specs": False, **settings, "layer_specs": [
        *more,
        {"patterns": [".*\\.out\\.weight$", ".*\\.down\\.weight$"], "partition_type": "row"},
        {"patterns": [".*\\.gate_up\\.weight$"], "partition_type": "column", "shape": [2, -1], "partition_dim": 0},
        {"patterns": ["head\\.weight$"], "partition_type": "column", "gather_output": True}]}


OF_THREE = {"patterns": [".*\\.qkv\\.weight$"], "partition_type": "column", "shape": [3, -1], "partition_dim": 0}
UNEQUAL = {**OF_THREE, "shape": [[30, 10, 10], -1]}
NORMS = {"patterns": [".*\\.q_norm\\.weight$"], "partition_type": "skip", "grad_allreduce": True}
