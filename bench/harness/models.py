"""BERT with its masked-language-model head, GPT-2, by Hugging Face's names, and many small matrices, in plain PyTorch, without dropout: two
frameworks would drop different elements. BERT's arithmetic and first weights are those of tessera/models/bert.cpp.
"""

import torch
from torch import nn
from torch.nn import functional


class LinearInFp32(torch.autograd.Function):
    """A product of 16-bit matrices on a CPU without AVX-512, where torch's own takes thirty times as long as in fp32."""

    @staticmethod
    def forward(context, x, weight, bias):
        context.save_for_backward(x, weight)
        context.has_bias = bias is not None
        return functional.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        wide = gradient.float().flatten(0, -2)
        x_gradient = (wide @ weight.float()).view(x.shape).to(x.dtype)
        weight_gradient = (wide.t() @ x.float().flatten(0, -2)).to(weight.dtype)
        return x_gradient, weight_gradient, wide.sum(0).to(weight.dtype) if context.has_bias else None


def linear(x, weight, bias=None):
    if x.element_size() < 4 and torch.backends.cpu.get_cpu_capability() != "AVX512":
        return LinearInFp32.apply(x, weight, bias)
    return functional.linear(x, weight, bias)


class Linear(nn.Linear):
    def forward(self, x):
        return linear(x, self.weight, self.bias)


def attend(query, key, value, heads, is_causal=False):
    def split(x):  # (batch, length, hidden) -> (batch, heads, length, hidden / heads)
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)
    context = functional.scaled_dot_product_attention(split(query), split(key), split(value), is_causal=is_causal)
    return context.transpose(1, 2).reshape(query.shape)


class BertLayer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        width, inner = sizes["hidden_size"], sizes["intermediate_size"]
        self.heads = sizes["num_attention_heads"]
        self.attention = nn.ModuleDict({
            "self": nn.ModuleDict({name: Linear(width, width) for name in ("query", "key", "value")}),
            "output": nn.ModuleDict({"dense": Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps=1e-12)})})
        self.intermediate = nn.ModuleDict({"dense": Linear(width, inner)})
        self.output = nn.ModuleDict({"dense": Linear(inner, width), "LayerNorm": nn.LayerNorm(width, eps=1e-12)})

    def forward(self, x):
        projections, output = self.attention["self"], self.attention["output"]
        attended = attend(projections["query"](x), projections["key"](x), projections["value"](x), self.heads)
        attended = output["LayerNorm"](output["dense"](attended) + x)
        inner = functional.gelu(self.intermediate["dense"](attended))
        return self.output["LayerNorm"](self.output["dense"](inner) + attended)


class BertEmbeddings(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        width = sizes["hidden_size"]
        self.word_embeddings = nn.Embedding(sizes["vocab_size"], width, padding_idx=0)
        self.position_embeddings = nn.Embedding(512, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.word_embeddings(ids) + self.token_type_embeddings(torch.zeros_like(ids))
        return self.LayerNorm(x + self.position_embeddings(positions))


class BertHead(nn.Module):
    """The decoder's weight is the word embeddings'."""

    def __init__(self, sizes, words):
        super().__init__()
        width = sizes["hidden_size"]
        self.transform = nn.ModuleDict({"dense": Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps=1e-12)})
        self.decoder = Linear(width, sizes["vocab_size"])
        self.decoder.weight = words.weight

    def forward(self, x):
        return self.decoder(self.transform["LayerNorm"](functional.gelu(self.transform["dense"](x))))


class Bert(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        layers = nn.ModuleList(BertLayer(sizes) for _ in range(sizes["num_hidden_layers"]))
        self.bert = nn.ModuleDict({"embeddings": BertEmbeddings(sizes), "encoder": nn.ModuleDict({"layer": layers})})
        self.cls = nn.ModuleDict({"predictions": BertHead(sizes, self.bert["embeddings"].word_embeddings)})

    @property
    def blocks(self):
        return self.bert["encoder"]["layer"]

    def forward(self, ids, labels):
        x = self.bert["embeddings"](ids)
        for layer in self.blocks:
            x = layer(x)
        return functional.cross_entropy(self.cls["predictions"](x).flatten(0, 1).float(), labels.flatten())


class Gpt2Layer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        width, inner = sizes["hidden_size"], sizes["intermediate_size"]
        self.heads = sizes["num_attention_heads"]
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": Linear(width, 3 * width), "c_proj": Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": Linear(width, inner), "c_proj": Linear(inner, width)})

    def forward(self, x):
        query, key, value = self.attn["c_attn"](self.ln_1(x)).chunk(3, dim=-1)
        x = x + self.attn["c_proj"](attend(query, key, value, self.heads, is_causal=True))
        return x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        width = sizes["hidden_size"]
        self.wte, self.wpe = nn.Embedding(sizes["vocab_size"], width), nn.Embedding(1024, width)
        self.h = nn.ModuleList(Gpt2Layer(sizes) for _ in range(sizes["num_hidden_layers"]))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = Linear(width, sizes["vocab_size"], bias=False)
        self.lm_head.weight = self.wte.weight

    @property
    def blocks(self):
        return self.h

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.blocks:
            x = layer(x)
        return functional.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1).float(), labels.flatten())


class ManySmall(nn.Module):
    """What frameworks do for each parameter takes longer here than what is computed with it."""

    def __init__(self, sizes):
        super().__init__()
        width = sizes["hidden_size"]
        self.wte = nn.Embedding(sizes["vocab_size"], width)
        self.h = nn.ModuleList(Linear(width, width, bias=False) for _ in range(sizes["num_hidden_layers"]))

    @property
    def blocks(self):
        return self.h

    def forward(self, ids, labels):
        x = self.wte(ids)
        for layer in self.blocks:
            x = x + layer(x)
        return functional.cross_entropy(linear(x, self.wte.weight).flatten(0, 1).float(), labels.flatten())


def make_model(sizes):
    with torch.device("meta"):  # torch's own initial values would cost seconds and be overwritten
        model = {"bert": Bert, "gpt2": Gpt2, "many-small": ManySmall}[sizes["model_type"]](sizes)
    model.to_empty(device="cpu")
    _tie(model)
    for name, parameter in model.named_parameters():
        initialize(name, parameter.data)
    return model


def _tie(model):
    """to_empty() gives each name of a shared parameter a tensor of its own."""
    if isinstance(model, Bert):
        model.cls["predictions"].decoder.weight = model.bert["embeddings"].word_embeddings.weight
    elif isinstance(model, Gpt2):
        model.lm_head.weight = model.wte.weight


def initialize(name, value, seed=42):
    """As initialize_bert_parameter in tessera/models/bert.cpp; here also GPT-2's, whose norms are called ln_…"""
    if name.endswith("bias"):
        value.zero_()
    elif "LayerNorm" in name or "ln_" in name:
        value.fill_(1)
    else:
        value.normal_(0, 0.02, generator=torch.Generator().manual_seed(_seed_of(seed, name)))
        if name.endswith("word_embeddings.weight"):
            value[0].zero_()


def _seed_of(seed, name):
    """FNV-1a of the name, begun at an offset that the seed changes; in 64 bits."""
    state = 0xcbf29ce484222325 ^ (seed * 0x9e3779b97f4a7c15 % 2**64)
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001b3 % 2**64
    return state
