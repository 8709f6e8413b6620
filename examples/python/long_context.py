"""One long sequence whose tokens two ranks share (Ulysses): the Trainer and Accelerate's ParallelismConfig, ZeRO-3.

    deepspeed --include localhost:0,1 long_context.py --deepspeed ds_config.json --output_dir out
"""

from dataclasses import dataclass, field

import tiny
import torch
from accelerate import ParallelismConfig
from accelerate.utils import DeepSpeedSequenceParallelConfig
from transformers import AutoTokenizer, HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


@dataclass
class Arguments:
    model_name_or_path: str = field(default=None, metadata={"help": "a folder with a Llama; without it a tiny one is made"})
    length: int = field(default=1024, metadata={"help": "tokens of a sequence, of which each rank has its part"})
    ranks: int = field(default=2, metadata={"help": "that share a sequence"})


def main():
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(max_steps=20, per_device_train_batch_size=1, learning_rate=1e-3, logging_steps=5, save_strategy="no", report_to="none",
                        disable_tqdm=True)
    args, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)
    training.parallelism_config = ParallelismConfig(
        sp_backend="deepspeed", sp_size=args.ranks,
        sp_handler=DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation="sdpa"))

    if args.model_name_or_path:
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
        model = LlamaForCausalLM.from_pretrained(args.model_name_or_path, attn_implementation="sdpa")
    else:
        tokenizer = tiny.word_tokenizer(tiny.lines())
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=args.length, pad_token_id=tokenizer.pad_token_id, attn_implementation="sdpa"))
    ids = torch.tensor([token for text in tiny.lines() for token in tokenizer(text).input_ids + [tokenizer.eos_token_id]])
    ids = ids.repeat(1 + 8 * args.length // len(ids))
    rows = [{"input_ids": part, "labels": part.clone(), "position_ids": torch.arange(args.length)}
            for part in ids[:8 * args.length].split(args.length)]
    Trainer(model=model, args=training, train_dataset=rows).train()


if __name__ == "__main__":
    main()
