"""A model as a list of layers, spread over two ranks as the stages of a pipeline: PipelineModule and train_batch.

    deepspeed --include localhost:0,1 pipeline.py
"""

import argparse

import deepspeed
import tiny
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--stages", type=int, default=2)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--save", help="a folder for the checkpoint")
parser.add_argument("--local_rank", type=int, default=-1, help="set by the launcher")
args = parser.parse_args()

deepspeed.init_distributed()
torch.manual_seed(0)


class Embedding(nn.Embedding):
    """With the positions added."""

    def __init__(self, words, width, length=64):
        super().__init__(words, width)
        self.positions = nn.Parameter(torch.zeros(length, width))

    def forward(self, ids):
        return super().forward(ids) + self.positions[:ids.shape[1]]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layer(self.norm(x), src_mask=mask, is_causal=True)


def logits(embedding, x):
    """The head has the embedding's weight, which the first stage and the last one share."""
    return x @ embedding.weight.t()


def loss_of(predicted, labels):
    return nn.functional.cross_entropy(predicted[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


tokenizer = tiny.word_tokenizer(tiny.lines())
rows = []
for text in tiny.lines():
    ids = tokenizer(text, truncation=True, padding="max_length", max_length=24, return_tensors="pt").input_ids[0]
    rows.append((ids, ids.masked_fill(ids == tokenizer.pad_token_id, -100)))

words = len(tokenizer)
model = PipelineModule(
    layers=[TiedLayerSpec("embedding", Embedding, words, args.width),
            *(LayerSpec(Block, args.width) for _ in range(4)),
            LayerSpec(nn.LayerNorm, args.width),
            TiedLayerSpec("embedding", Embedding, words, args.width, forward_fn=logits)],
    loss_fn=loss_of, num_stages=args.stages, partition_method="parameters")
engine, *_ = deepspeed.initialize(model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], training_data=rows, config={
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}})

for step in range(args.steps):
    loss = engine.train_batch()
    if dist.get_rank() == 0 and (step + 1) % 10 == 0:
        print(f"step {step + 1}/{args.steps}: loss {loss.item():.4f}", flush=True)

if args.save:
    engine.save_checkpoint(args.save)
