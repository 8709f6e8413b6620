"""What is run of each client: published programs, unchanged, with configurations as their documentation has them. Those that no package has
are in checkouts.py.
"""

from pathlib import Path

import checkouts
from case import STAGES, STEPS, TRAINER, Case


def trl(script, data, *more):
    def program(inputs, output, ds_config):
        return ["--module", f"trl.scripts.{script}", "--model_name_or_path", inputs / "llama", "--dataset_name", inputs / data, "--output_dir", output,
                "--deepspeed", ds_config, "--bf16", "false", "--gradient_accumulation_steps", 2, "--learning_rate", "1e-3", *TRAINER, *more]
    return program


LORA = ["--use_peft", "--lora_r", 4, "--lora_alpha", 8, "--lora_target_modules", "q_proj", "v_proj"]
TRL = [
    *(Case("TRL", "sft", trl("sft", "chat", "--max_length", 48), zero) for zero in STAGES),
    Case("TRL", "sft, LoRA", trl("sft", "chat", "--max_length", 48, *LORA), "ZeRO-3"),
    *(Case("TRL", "dpo", trl("dpo", "preferences"), zero) for zero in ("ZeRO-2", "ZeRO-3")),
    Case("TRL", "dpo, LoRA", trl("dpo", "preferences", *LORA), "ZeRO-3"),
    Case("TRL", "reward", trl("reward", "preferences"), "ZeRO-2"),
]


def llama_factory(stage, data, template="default", **more):
    """By its command's own module, with a YAML file as its examples have."""
    def program(inputs, output, ds_config):
        import yaml

        values = {"model_name_or_path": str(inputs / "llama"), "stage": stage, "do_train": True, "finetuning_type": "full", "deepspeed": str(ds_config),
                  "dataset_dir": str(inputs / "alpaca"), "dataset": data, "template": template, "cutoff_len": 48, "output_dir": str(output),
                  "logging_steps": 1, "save_steps": STEPS, "max_steps": STEPS, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
                  "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "report_to": "none", "disable_tqdm": True, "seed": 7,
                  "overwrite_output_dir": True, "preprocessing_num_workers": 1, **more}
        path = Path(ds_config).with_name("train.yaml")
        path.write_text(yaml.safe_dump(values))
        return ["--module", "llamafactory.launcher", path]
    return program


LLAMA_FACTORY = [
    *(Case("LLaMA-Factory", "sft, full", llama_factory("sft", "tales"), zero, "llama-factory", launcher="torchrun") for zero in STAGES),
    Case("LLaMA-Factory", "sft, LoRA", llama_factory("sft", "tales", finetuning_type="lora", lora_rank=4, lora_target="q_proj,v_proj"), "ZeRO-3",
         "llama-factory", launcher="torchrun"),
    Case("LLaMA-Factory", "pretraining", llama_factory("pt", "plain"), "ZeRO-2", "llama-factory", launcher="torchrun"),
]

def swift(command, data, *more):
    def program(inputs, output, ds_config):
        return ["--module", f"swift.cli.{command}", "--model", inputs / "llama", "--model_type", "llama", "--template", "dummy", "--dataset",
                inputs / data / "train.jsonl", "--deepspeed", ds_config, "--output_dir", output, "--add_version", "false", "--torch_dtype", "float32", "--fp16", "false", "--bf16", "false",
                "--gradient_accumulation_steps", 2, "--learning_rate", "1e-3", "--max_length", 48, "--split_dataset_ratio", 0, *TRAINER, *more]
    return program


SWIFT = [
    *(Case("ms-swift", "sft, full", swift("sft", "chat", "--tuner_type", "full"), zero, "ms-swift", launcher="torchrun") for zero in ("ZeRO-2", "ZeRO-3")),
    Case("ms-swift", "sft, LoRA", swift("sft", "chat", "--tuner_type", "lora", "--lora_rank", 4), "ZeRO-2, offloaded", "ms-swift", launcher="torchrun"),
]

CASES = [*checkouts.CASES, *TRL, *LLAMA_FACTORY, *SWIFT]
