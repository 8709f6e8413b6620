"""Do two sentences say the same? BERT trained in a loop of our own with Accelerate, which takes DeepSpeed from its yaml file.

    accelerate launch --config_file accelerate_zero3.yaml train_accelerate.py
"""

import argparse

import tiny
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (AutoTokenizer, BertConfig, BertForSequenceClassification, DataCollatorWithPadding,
                          get_linear_schedule_with_warmup)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a folder with BERT and its tokenizer; without it a tiny BERT is made")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=2, help="of each rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--max_length", type=int, default=64, help="tokens of a pair of sentences")
    parser.add_argument("--output_dir", help="a folder for the trained weights")
    args = parser.parse_args()

    accelerator = Accelerator()
    set_seed(42)

    pairs = tiny.PARAPHRASES * 4
    if args.model:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        model = BertForSequenceClassification.from_pretrained(args.model, num_labels=2)
    else:
        tokenizer = tiny.word_tokenizer(sentence for pair in pairs for sentence in pair[:2])
        model = BertForSequenceClassification(BertConfig(
            vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2))
    dataset = [{**tokenizer(first, second, truncation=True, max_length=args.max_length), "labels": label}
               for first, second, label in pairs]
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, collate_fn=DataCollatorWithPadding(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, len(loader) * args.epochs)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    for epoch in range(args.epochs):
        model.train()
        epoch_loss = 0.0
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            epoch_loss += accelerator.gather(loss.detach()[None]).mean().item()
        accelerator.print(f"epoch {epoch + 1}/{args.epochs}: loss {epoch_loss / len(loader):.4f}")

    if args.output_dir:
        weights = accelerator.get_state_dict(model)  # every rank takes part in gathering them
        accelerator.unwrap_model(model).save_pretrained(
            args.output_dir, is_main_process=accelerator.is_main_process, state_dict=weights)
    accelerator.end_training()


if __name__ == "__main__":
    main()
