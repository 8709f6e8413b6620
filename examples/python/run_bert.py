"""Masked language modelling with BERT, a plain script for DeepSpeed: deepspeed.initialize, then forward, backward, step.

    deepspeed --include localhost:0,1 run_bert.py --deepspeed --deepspeed_config bert_ds.json
"""

import argparse
from pathlib import Path

import deepspeed
import tiny
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling

parser = argparse.ArgumentParser()
parser.add_argument("--model", help="a folder with BERT and its tokenizer; without it a tiny BERT is made")
parser.add_argument("--text", help="a file to train on, a sample a line; without it a few sentences are used")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--max_length", type=int, default=32, help="tokens of a sample")
parser.add_argument("--max_samples", type=int, default=128, help="lines of the text that are used; 0: all")
parser.add_argument("--save", help="a folder for the checkpoint")
parser.add_argument("--local_rank", type=int, default=-1, help="set by the launcher")
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()

deepspeed.init_distributed()
rank = dist.get_rank()

texts = (Path(args.text).read_text().splitlines() if args.text else tiny.lines())[:args.max_samples or None]
if args.model:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = BertForMaskedLM.from_pretrained(args.model)
else:
    tokenizer = tiny.word_tokenizer(texts)
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=2,
                                       num_attention_heads=2, intermediate_size=256))

dataset = [tokenizer(text, truncation=True, padding="max_length", max_length=args.max_length) for text in texts]
model_engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=model_engine.train_micro_batch_size_per_gpu(), sampler=sampler, drop_last=True,
                    collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15))

model_engine.train()
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    epoch_loss = 0
    for batch in loader:
        batch = {name: value.to(model_engine.device) for name, value in batch.items()}
        loss = model_engine(**batch).loss
        model_engine.backward(loss)
        model_engine.step()
        epoch_loss += loss.item()
    if rank == 0:
        print(f"epoch {epoch + 1}/{args.epochs}: loss {epoch_loss / len(loader):.4f}", flush=True)

if args.save:
    model_engine.save_checkpoint(args.save)
