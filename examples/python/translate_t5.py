"""Translation with T5 and Hugging Face's Trainer, which takes DeepSpeed from its option --deepspeed.

    deepspeed --num_gpus=2 translate_t5.py --deepspeed ds_config.json --do_train --output_dir out
"""

import json
from dataclasses import dataclass, field

import tiny
import torch
from transformers import (AutoTokenizer, DataCollatorForSeq2Seq, HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments,
                          T5Config, T5ForConditionalGeneration, set_seed)


@dataclass
class Arguments:
    model_name_or_path: str = field(default=None, metadata={"help": "a folder with T5; without it a tiny T5 is made"})
    train_file: str = field(default=None, metadata={"help": 'lines like {"translation": {"en": "…", "ro": "…"}}'})
    max_train_samples: int = field(default=None, metadata={"help": "use only so many"})
    max_length: int = field(default=64, metadata={"help": "tokens of a sentence"})
    source_lang: str = "en"
    target_lang: str = "ro"


parser = HfArgumentParser((Arguments, Seq2SeqTrainingArguments))
parser.set_defaults(num_train_epochs=20, per_device_train_batch_size=2, learning_rate=2e-3, logging_steps=10,
                    save_strategy="no", report_to="none", disable_tqdm=True)
args, training = parser.parse_args_into_dataclasses()
set_seed(training.seed)

pairs = tiny.TRANSLATIONS
if args.train_file:
    with open(args.train_file, encoding="utf-8") as file:
        rows = [json.loads(line)["translation"] for line in file]
    pairs = [(row[args.source_lang], row[args.target_lang]) for row in rows]
pairs = pairs[:args.max_train_samples]

if args.model_name_or_path:
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = T5ForConditionalGeneration.from_pretrained(args.model_name_or_path)
else:
    tokenizer = tiny.word_tokenizer(text for pair in pairs for text in pair)
    model = T5ForConditionalGeneration(T5Config(
        vocab_size=len(tokenizer), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id))

end = "" if args.model_name_or_path else tokenizer.eos_token  # a pretrained T5's tokenizer ends its sentences itself
dataset = [dict(tokenizer(source + end, text_target=target + end, truncation=True, max_length=args.max_length))
           for source, target in pairs]
trainer = Seq2SeqTrainer(model=model, args=training, train_dataset=dataset, processing_class=tokenizer,
                         data_collator=DataCollatorForSeq2Seq(tokenizer, model=model))
if training.do_train:
    trainer.train()
    if training.save_strategy != "no":
        trainer.save_model()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
