"""Supervised fine-tuning of a causal language model with LoRA adapters (PEFT), TRL's SFTTrainer and ZeRO-3.

    deepspeed --include localhost:0,1 lora_sft.py --deepspeed ds_config.json --output_dir out
"""

from dataclasses import dataclass, field

import tiny
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, HfArgumentParser, set_seed
from trl import SFTConfig, SFTTrainer


@dataclass
class Arguments:
    model_name_or_path: str = field(default=None, metadata={"help": "a folder with a model; without it a tiny Llama is made"})
    train_file: str = field(default=None, metadata={"help": 'lines like {"text": "…"}; without it text of ours'})
    max_train_samples: int = field(default=128, metadata={"help": "use only so many"})
    lora_rank: int = 8


def main():
    parser = HfArgumentParser((Arguments, SFTConfig))
    parser.set_defaults(num_train_epochs=3, per_device_train_batch_size=4, learning_rate=1e-2, max_length=64,
                        logging_steps=8, save_strategy="no", report_to="none", disable_tqdm=True, bf16=False)
    args, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)

    if args.train_file:
        dataset = Dataset.from_json(args.train_file)
    else:
        dataset = Dataset.from_dict({"text": tiny.lines()})
    dataset = dataset.select(range(min(args.max_train_samples, len(dataset))))
    if args.model_name_or_path:
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
        model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
    else:
        tokenizer = tiny.word_tokenizer(dataset["text"])
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None))

    trainer = SFTTrainer(model=model, args=training, train_dataset=dataset, processing_class=tokenizer,
                         peft_config=LoraConfig(r=args.lora_rank, lora_alpha=2 * args.lora_rank, task_type="CAUSAL_LM",
                                                target_modules="all-linear"))
    trainer.train()
    if training.save_strategy != "no":
        trainer.save_model()  # the adapters alone


if __name__ == "__main__":
    main()
