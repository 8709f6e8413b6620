"""What is run of each client: published programs, unchanged, with configurations as their documentation has them. Those that no package has
come from checkouts in the folder that CLIENTS names.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

STEPS = 6
AUTO = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True}
STAGES = {
    "ZeRO-1": {"stage": 1},
    "ZeRO-2": {"stage": 2, "allgather_partitions": True, "overlap_comm": False, "reduce_scatter": True, "contiguous_gradients": True},
    "ZeRO-2, offloaded": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "ZeRO-3": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True, "reduce_bucket_size": "auto",
               "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
    "ZeRO-3, offloaded": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True, "offload_optimizer": {"device": "cpu"},
                          "offload_param": {"device": "cpu"}},
}


@dataclass
class Case:
    client: str
    name: str
    program: object  # a function (inputs, output, ds_config) -> the program and its arguments
    zero: str = "ZeRO-2"
    environment: str = ""
    launcher: str = "deepspeed"  # or torchrun, accelerate: as the client's documentation starts it
    template: Path = None  # the whole ds_config, of the client's own
    config: dict = field(default_factory=dict)
    tolerance: float = 1e-5  # relative, of losses and norms
    only_tessera: str = ""  # why DeepSpeed itself does not run it here

    def ds_config(self, folder):
        path = folder / "ds_config.json"
        if self.template is not None:
            shutil.copy(self.template, path)
            return path
        path.write_text(json.dumps({**AUTO, "zero_optimization": STAGES[self.zero], **self.config}, indent=1))
        return path

    @property
    def full_name(self):
        return f"{self.client}: {self.name}, {self.template.name if self.template else self.zero}"


TRAINER = ["--max_steps", STEPS, "--logging_steps", 1, "--save_steps", STEPS, "--per_device_train_batch_size", 2, "--report_to", "none",
           "--disable_tqdm", "true", "--seed", 7]


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

CHECKOUTS = Path(os.environ.get("CLIENTS", "/nowhere"))
TEMPLATES = CHECKOUTS / "accelerate" / "examples" / "deepspeed_config_templates"
NAMED = {"optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True, "adam_w_mode": True}},
         "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                                                           "total_num_steps": "auto"}}, "gradient_accumulation_steps": 1}


def accelerate_clm(inputs, output, ds_config):
    """By `accelerate launch` with the file that `accelerate config` writes."""
    Path(ds_config).with_name("accelerate.yaml").write_text(
        f"compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 2\nmachine_rank: 0\n"
        f"deepspeed_config: {{deepspeed_config_file: {ds_config}, zero3_init_flag: true}}\n")
    text = inputs / "text" / "train.txt"
    return [CHECKOUTS / "accelerate" / "examples" / "by_feature" / "deepspeed_with_config_support.py", "--train_file", text, "--validation_file", text,
            "--model_name_or_path", inputs / "llama", "--block_size", 32, "--per_device_train_batch_size", 2, "--num_train_epochs", 3,
            "--learning_rate", "1e-3", "--seed", 7, "--output_dir", output]


ACCELERATE = [
    *(Case("Accelerate", "deepspeed_with_config_support.py", accelerate_clm, zero, launcher="accelerate", config=NAMED)
      for zero in ("ZeRO-2", "ZeRO-3", "ZeRO-3, offloaded")),
    *(Case("Accelerate", "deepspeed_with_config_support.py", accelerate_clm, template=path, launcher="accelerate",
           only_tessera="DeepSpeed has no fp16 on a CPU") for path in sorted(TEMPLATES.glob("*.json"))),
] if TEMPLATES.exists() else []

CASES = [*ACCELERATE, *TRL, *LLAMA_FACTORY, *SWIFT]
