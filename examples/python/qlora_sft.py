"""QLoRA: a base model in 4 bits (bitsandbytes' NF4), LoRA adapters beside it (PEFT), TRL's SFTTrainer and ZeRO-2.

    deepspeed --include localhost:0,1 qlora_sft.py --deepspeed ds_config_zero2.json --output_dir out
"""

import os
from dataclasses import dataclass, field

import tiny
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, HfArgumentParser, LlamaConfig, LlamaForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer


@dataclass
class Arguments:
    model_name_or_path: str = field(default=None, metadata={"help": "a folder with a model; without it a tiny Llama is made"})
    train_file: str = field(default=None, metadata={"help": 'lines like {"text": "…"}; without it text of ours'})
    max_train_samples: int = field(default=128, metadata={"help": "use only so many"})
    lora_rank: int = 8


def folder_of_tiny_llama(tokenizer, training):
    """bitsandbytes quantizes a model as it is loaded, so rank 0 writes one."""
    folder = os.path.join(training.output_dir, "tiny-llama")
    with training.main_process_first():
        if training.process_index == 0:
            LlamaForCausalLM(LlamaConfig(
                vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None)).save_pretrained(folder)
    return folder


def main():
    parser = HfArgumentParser((Arguments, SFTConfig))
    parser.set_defaults(num_train_epochs=3, per_device_train_batch_size=4, learning_rate=1e-2, max_length=64, logging_steps=8,
                        save_strategy="no", report_to="none", disable_tqdm=True, bf16=False, gradient_checkpointing=False)
    args, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)

    dataset = Dataset.from_json(args.train_file) if args.train_file else Dataset.from_dict({"text": tiny.lines()})
    dataset = dataset.select(range(min(args.max_train_samples, len(dataset))))
    if args.model_name_or_path:
        tokenizer, folder = AutoTokenizer.from_pretrained(args.model_name_or_path), args.model_name_or_path
    else:
        tokenizer = tiny.word_tokenizer(dataset["text"])
        folder = folder_of_tiny_llama(tokenizer, training)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32))
    trainer = SFTTrainer(model=model, args=training, train_dataset=dataset, processing_class=tokenizer,
                         peft_config=LoraConfig(r=args.lora_rank, lora_alpha=2 * args.lora_rank, task_type="CAUSAL_LM",
                                                target_modules="all-linear"))
    trainer.train()
    if training.save_strategy != "no":
        trainer.save_model()  # the adapters alone


if __name__ == "__main__":
    main()
