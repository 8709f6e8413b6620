"""PEFT's examples, of a checkout in the folder that CLIENTS names."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from case import STEPS, Case
from laid_out import CHECKOUTS, HERE

CLM = CHECKOUTS / "peft" / "examples" / "causal_language_modeling"
SFT = CHECKOUTS / "peft" / "examples" / "sft"


def sft(config, *more):
    """As its run_peft_deepspeed.sh has it, with its accelerate configuration for two ranks in fp32."""
    def program(inputs, output, ds_config):
        described = (SFT / "configs" / config).read_text()
        for line, other in (("num_processes: .*", "num_processes: 2"), ("mixed_precision: .*", "mixed_precision: 'no'"),
                            ("gradient_accumulation_steps: .*", "gradient_accumulation_steps: 2")):
            described = re.sub(line, other, described)
        folder = Path(ds_config).parent
        (folder / "accelerate.yaml").write_text(described)
        (folder / "chat").mkdir()
        for split in ("train", "test"):
            shutil.copy(inputs / "chat" / "train.jsonl", folder / "chat" / f"{split}.jsonl")
        return [SFT / "train.py", "--seed", 100, "--model_name_or_path", inputs / "llama", "--dataset_name", folder / "chat", "--chat_template_format",
                "chatml", "--add_special_tokens", "False", "--append_concat_token", "False", "--splits", "train,test", "--max_length", 48, "--max_steps",
                STEPS, "--logging_steps", 1, "--eval_strategy", "steps", "--eval_steps", STEPS, "--save_steps", STEPS, "--report_to", "none", "--bf16", "False",
                "--packing", "False", "--learning_rate", "1e-3", "--lr_scheduler_type", "cosine", "--weight_decay", "1e-4", "--warmup_steps", 0,
                "--max_grad_norm", "1.0", "--output_dir", output, "--per_device_train_batch_size", 2, "--per_device_eval_batch_size", 2,
                "--gradient_accumulation_steps", 2, "--gradient_checkpointing", "True", "--dataset_text_field", "content", "--use_flash_attn", "False",
                "--use_peft_lora", "True", "--lora_r", 8, "--lora_alpha", 16, "--lora_dropout", "0.1", "--lora_target_modules", "all-linear", *more]
    return program


def causal_language_modeling(inputs, output, ds_config):
    folder = Path(ds_config).parent
    (folder / "accelerate.yaml").write_text((CLM / "accelerate_ds_zero3_cpu_offload_config.yaml").read_text().replace(
        "num_processes: 1", "num_processes: 2"))
    subprocess.run([sys.executable, HERE / "programs" / "peft_clm.py", "--model", inputs / "llama"], cwd=folder, check=True, capture_output=True)
    return [HERE / "programs" / "peft_clm.py", CLM / "peft_lora_clm_accelerate_ds_zero3_offload.py"]


# bitsandbytes packs the weights for an evaluation, if the processor has AVX-512, and takes them for whole then.
QLORA = ["--eval_strategy", "no", "--use_4bit_quantization", "True", "--use_nested_quant", "True", "--bnb_4bit_compute_dtype", "float32", "--bnb_4bit_quant_storage_dtype",
         "float32", "--use_reentrant", "True"]
CASES = [
    Case("PEFT", "examples/sft, LoRA", sft("deepspeed_config.yaml", "--use_4bit_quantization", "False", "--use_reentrant", "False"), "ZeRO-3",
         launcher="accelerate"),
    Case("PEFT", "examples/causal_language_modeling", causal_language_modeling, "ZeRO-3", launcher="accelerate"),
    Case("PEFT", "examples/sft, QLoRA", sft("deepspeed_config_z3_qlora.yaml", *QLORA), "ZeRO-3", launcher="accelerate",
         only_tessera="TRL makes its adapters bf16, which DeepSpeed leaves so beside fp32 weights, and Tessera trains in fp32"),
] if SFT.exists() else []
