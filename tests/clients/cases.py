"""What is run of each client: published programs, unchanged, with configurations as their documentation has them. Those that no package has
are in checkouts.py.
"""

import re
import shutil
from pathlib import Path

import checkouts
import own_suites
from case import BFLOAT16, STAGES, STEPS, TRAINER, Case


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

KTO = [Case("TRL", "kto", trl("kto", "preferences"), zero) for zero in ("ZeRO-2", "ZeRO-3")]


def grpo(script, *more):
    """Completions are rewarded by a function that the script is told by name."""
    def program(inputs, output, ds_config):
        Path(ds_config).with_name("rewards.py").write_text(
            "def letters(completions, **_):\n    return [float(len(completion)) for completion in completions]\n")
        return trl(script, "prompts", "--reward_funcs", "rewards.letters", "--num_generations", 4, "--max_completion_length", 12,
                   *more)(inputs, output, ds_config)
    return program


GRPO = [*(Case("TRL", "grpo", grpo("grpo"), zero) for zero in ("ZeRO-2", "ZeRO-3")), Case("TRL", "grpo, LoRA", grpo("grpo", *LORA), "ZeRO-3"),
        Case("TRL", "grpo, a reference model", grpo("grpo", "--beta", 0.1), "ZeRO-3"),
        Case("TRL", "rloo", grpo("rloo"), "ZeRO-2", at_least=1)]  # a loss over advantages whose mean is zero

PROGRAMS = Path(__file__).resolve().parent / "programs"
STRATEGIES = {"ZeRO-1": "deepspeed_stage_1", "ZeRO-2": "deepspeed_stage_2", "ZeRO-2, offloaded": "deepspeed_stage_2_offload",
              "ZeRO-3": "deepspeed_stage_3", "ZeRO-3, offloaded": "deepspeed_stage_3_offload"}


def lightning(script, zero):
    def program(inputs, output, ds_config):
        text = Path(ds_config).with_name("wikitext-2.txt")
        text.write_text((inputs / "text" / "train.txt").read_text())
        output.mkdir()
        return [PROGRAMS / script, STRATEGIES[zero], "32-true", text.parent, output]
    return program


LIGHTNING = [Case("Lightning", name, lightning(script, zero), zero, "lightning", launcher="torchrun")
             for name, script in (("Trainer", "lightning_trainer.py"), ("Fabric", "lightning_fabric.py")) for zero in STRATEGIES]

XTUNER_CONFIGS = Path(__file__).resolve().parents[2] / ".venv-clients" / "xtuner" / "lib"
PRETRAINING = "custom_dataset/pretrain/llama/llama2_7b_full_custom_pretrain_e1.py"


def xtuner(*more):
    """With a copy of one of its configurations, edited as its guide says."""
    def program(inputs, output, ds_config):
        folder = Path(ds_config).parent
        shutil.copytree(inputs / "llama", folder / "llama", dirs_exist_ok=True)
        described = folder / "llama" / "tokenizer_config.json"  # by the class's name in transformers 4, which XTuner needs
        described.write_text(described.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))
        source, = XTUNER_CONFIGS.glob(f"*/site-packages/xtuner/configs/{PRETRAINING}")
        settings = {"pretrained_model_name_or_path": str(folder / "llama"), "data_files": [str(inputs / "alpaca" / "plain.json")], "max_length": 48,
                    "batch_size": 2, "accumulative_counts": 2, "lr": 1e-3, "max_epochs": 2, "warmup_ratio": 0.5, "save_steps": 8,
                    "evaluation_inputs": ["the old wolf"]}
        text = source.read_text().replace('backend="nccl"', 'backend="gloo"').replace("interval=10", "interval=1").replace(
            "type=EvaluateChatHook,", "type=EvaluateChatHook, max_new_tokens=20,")
        for name, value in settings.items():
            text = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value!r}", text)
        (folder / "pretraining.py").write_text(text)
        return [PROGRAMS / "xtuner_tool.py", "xtuner.tools.train", folder / "pretraining.py", "--deepspeed", ds_config, "--seed", 7, "--launcher", "pytorch",
                "--work-dir", output / "work", *more]
    return program


def xtuner_resume(inputs, output, ds_config):
    return [*xtuner()(inputs, output, ds_config), "--resume", output / "work" / "iter_8.pth"]


def xtuner_convert(inputs, output, ds_config):
    return [PROGRAMS / "xtuner_tool.py", "xtuner.tools.model_converters.pth_to_hf", Path(ds_config).with_name("pretraining.py"),
            output / "work" / "iter_16.pth", output, "--fp32", "--safe-serialization"]


XTUNER = [Case("XTuner", "train, resume, convert", xtuner(), template=path, environment="xtuner", launcher="torchrun",
               config={"checkpoint": {"format": "deepspeed"}}, after=(("torchrun", xtuner_resume), ("alone", xtuner_convert)))
          for path in sorted(XTUNER_CONFIGS.glob("*/site-packages/xtuner/configs/deepspeed/*.json"))]


def openrlhf(tool, data, stage, *more):
    def program(inputs, output, ds_config):
        output.mkdir()
        return [PROGRAMS / "openrlhf_tool.py", output, f"openrlhf.cli.{tool}", "--model.model_name_or_path", inputs / "llama", "--data.dataset",
                inputs / data, "--data.max_len", 48, "--data.max_samples", 48, "--train.micro_batch_size", 2, "--train.batch_size", 8, "--train.max_epochs", 1,
                "--ds.zero_stage", stage, "--ds.param_dtype", "bf16", "--ds.attn_implementation", "eager", "--adam.lr", "1e-3", "--ckpt.output_dir", output,
                "--ckpt.path", output / "checkpoints", "--ckpt.save_steps", 3, "--logger.tensorboard_dir", output / "events", *more]
    return program


SFT_KEYS = ["--data.input_key", "prompt", "--data.output_key", "chosen"]
DPO_KEYS = ["--data.prompt_key", "prompt", "--data.chosen_key", "chosen", "--data.rejected_key", "rejected"]
OPENRLHF = [Case("OpenRLHF", name, openrlhf(tool, "preferences", stage, *keys), zero, "openrlhf", launcher="torchrun", tolerance=BFLOAT16)
            for name, tool, keys in (("sft", "train_sft", SFT_KEYS), ("dpo", "train_dpo", DPO_KEYS)) for stage, zero in ((2, "ZeRO-2"), (3, "ZeRO-3"))]

CASES = [*checkouts.CASES, *TRL, *KTO, *GRPO, *LLAMA_FACTORY, *SWIFT, *LIGHTNING, *XTUNER, *OPENRLHF, *own_suites.CASES]
