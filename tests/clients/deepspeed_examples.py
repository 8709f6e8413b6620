"""The training folders of DeepSpeedExamples, as their run scripts start them, with fewer steps."""

import json

from case import BFLOAT16, Case
from laid_out import CHECKOUTS, HERE, lay_out

EXAMPLES = CHECKOUTS / "DeepSpeedExamples"
CHAT = EXAMPLES / "applications" / "DeepSpeed-Chat"


def example(script, *arguments, files=None, rounded=False):
    """`files`: a function of the inputs, {name in the folder that it runs in: place}. `rounded`: see on_cpu.py."""
    def program(inputs, output, ds_config):
        lay_out(ds_config.parent, **(files(inputs) if files else {}))
        named = {"DS_CONFIG": ds_config, "OUTPUT": output}
        flags = ["--rounded"] if rounded else []
        return [HERE / "on_cpu.py", *flags, output / "steps.json", EXAMPLES / script, *(named.get(word, word) for word in arguments)]
    return program


def cifar(*arguments):
    return example("training/cifar/cifar10_deepspeed.py", "--epochs", 1, "--log-interval", 2, "--deepspeed", *arguments)


def moe(*arguments):
    return cifar("--dtype", "fp32", "--moe", "--ep-world-size", 2, "--num-experts", *arguments, "--top-k", 1, "--moe-param-group")


def pipeline(stages):
    def program(inputs, output, ds_config):
        ds_config.write_text(json.dumps({**json.loads((EXAMPLES / "training" / "pipeline_parallelism" / "ds_config.json").read_text()),
                                         "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4}))
        return example("training/pipeline_parallelism/train.py", "--deepspeed_config", ds_config, "-p", stages, "--steps", 2, "--backend", "gloo")(
            inputs, output, ds_config)
    return program


def chat(step, *arguments, rounded=False):
    return example(f"applications/DeepSpeed-Chat/training/{step}/main.py", "--data_path", "Dahoas/rm-static", "--data_split", "2,4,4",
                   "--data_output_path", "data_files", "--model_name_or_path", "facebook/opt-1.3b", "--per_device_train_batch_size", 2,
                   "--per_device_eval_batch_size", 2, "--max_seq_len", 48, "--learning_rate", "9.65e-6", "--num_train_epochs", 1,
                   "--lr_scheduler_type", "cosine", "--seed", 1234, "--dtype", "bf16", "--deepspeed", "--output_dir", "OUTPUT", *arguments,
                   files=lambda inputs: {"Dahoas/rm-static": inputs / "rm-static", "facebook/opt-1.3b": inputs / "opt"}, rounded=rounded)


def of(name, program, zero="", **more):
    return Case("DeepSpeedExamples", name, program, zero, "deepspeed-examples", **more)


CASES = [
    *(of("cifar", cifar("--dtype", "fp32", "--stage", stage), f"ZeRO-{stage}") for stage in range(4)),
    of("cifar, MoE", moe(2), "ZeRO-0"),
    of("cifar, PR-MoE", moe(2, 4, "--mlp-type", "residual"), "ZeRO-0"),
    of("pipeline_parallelism", pipeline(2), "2 stages"),
    of("pipeline_parallelism", pipeline(0), "no stages"),
    *(of("DeepSpeed-Chat, step 1", chat("step1_supervised_finetuning", "--zero_stage", stage, *more), zero, tolerance=BFLOAT16, path=(CHAT,))
      for stage, more, zero in ((2, (), "ZeRO-2"), (3, (), "ZeRO-3"), (3, ("--offload",), "ZeRO-3, offloaded"))),
    of("DeepSpeed-Chat, step 1, LoRA", chat("step1_supervised_finetuning", "--zero_stage", 3, "--lora_dim", 4, "--only_optimize_lora",
                                            "--gradient_checkpointing"), "ZeRO-3", tolerance=BFLOAT16, path=(CHAT,)),
    of("DeepSpeed-Chat, step 2, DPO", chat("step2_dpo_finetuning", "--zero_stage", 3), "ZeRO-3", tolerance=BFLOAT16, path=(CHAT,)),
    # Its loss is a number of bf16 whose neighbours are 0.6 % away, and its last norm the small rest of larger parts.
    of("DeepSpeed-Chat, step 2, reward, of rounded weights", chat("step2_reward_model_finetuning", "--zero_stage", 2, rounded=True), "ZeRO-2", path=(CHAT,)),
] if EXAMPLES.exists() else []
