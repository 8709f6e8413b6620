"""What is run of each client: published programs, unchanged, with configurations as their documentation has them."""

import json
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
    torchrun: bool = False  # as the client itself starts its ranks
    config: dict = field(default_factory=dict)
    tolerance: float = 1e-5  # relative, of losses and norms
    only_tessera: str = ""  # why DeepSpeed itself does not run it here

    def ds_config(self, folder):
        path = folder / "ds_config.json"
        path.write_text(json.dumps({**AUTO, "zero_optimization": STAGES[self.zero], **self.config}, indent=1))
        return path

    @property
    def full_name(self):
        return f"{self.client}: {self.name}, {self.zero}"


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
    *(Case("LLaMA-Factory", "sft, full", llama_factory("sft", "tales"), zero, "llama-factory", torchrun=True) for zero in STAGES),
    Case("LLaMA-Factory", "sft, LoRA", llama_factory("sft", "tales", finetuning_type="lora", lora_rank=4, lora_target="q_proj,v_proj"), "ZeRO-3",
         "llama-factory", torchrun=True),
    Case("LLaMA-Factory", "pretraining", llama_factory("pt", "plain"), "ZeRO-2", "llama-factory", torchrun=True),
]

def swift(command, data, *more):
    def program(inputs, output, ds_config):
        return ["--module", f"swift.cli.{command}", "--model", inputs / "llama", "--model_type", "llama", "--template", "dummy", "--dataset",
                inputs / data / "train.jsonl", "--deepspeed", ds_config, "--output_dir", output, "--add_version", "false", "--torch_dtype", "float32", "--fp16", "false", "--bf16", "false",
                "--gradient_accumulation_steps", 2, "--learning_rate", "1e-3", "--max_length", 48, "--split_dataset_ratio", 0, *TRAINER, *more]
    return program


SWIFT = [
    *(Case("ms-swift", "sft, full", swift("sft", "chat", "--tuner_type", "full"), zero, "ms-swift", torchrun=True) for zero in ("ZeRO-2", "ZeRO-3")),
    Case("ms-swift", "sft, LoRA", swift("sft", "chat", "--tuner_type", "lora", "--lora_rank", 4), "ZeRO-2, offloaded", "ms-swift", torchrun=True),
]

CASES = [*TRL, *LLAMA_FACTORY, *SWIFT]
