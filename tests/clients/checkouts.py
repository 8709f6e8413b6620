"""Programs that repositories have and no package: run where the folder that CLIENTS names has the checkout."""

import json
from pathlib import Path

import deepspeed_examples
import megatron_loops
import peft_examples
from case import BFLOAT16, TRAINER, Case
from laid_out import CHECKOUTS, HERE, METRICS, lay_out

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
           only_tessera="DeepSpeed has no fp16 on a CPU") for path in sorted(TEMPLATES.glob("*.json"))
      if "stage3" not in path.name),  # of these the example makes no weights to save: see docs/clients.md
] if TEMPLATES.exists() else []

NLP = CHECKOUTS / "accelerate" / "examples" / "nlp_example.py"
MACHINE = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmachine_rank: 0\nnum_machines: 1\nnum_processes: 2\nuse_cpu: false\n"
OF_STAGE_2 = ("deepspeed_config: {gradient_accumulation_steps: 1, gradient_clipping: 1.0, offload_optimizer_device: none, offload_param_device: none, "
              "zero3_init_flag: true, zero_stage: 2}\n")
OF_STAGE_3 = {"bf16": {"enabled": True}, "gradient_clipping": 1.0, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
              "gradient_accumulation_steps": 10, "steps_per_print": 2000000,
              "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False, "offload_optimizer": {"device": "none"},
                                    "offload_param": {"device": "none"}}}


def nlp_example(*arguments, settings=OF_STAGE_2):
    """With a file as `accelerate config` writes it, of fields of its own or with the name of a ds_config."""
    def program(inputs, output, ds_config):
        ds_config.write_text(json.dumps(OF_STAGE_3))
        ds_config.with_name("accelerate.yaml").write_text(MACHINE + settings)
        lay_out(ds_config.parent, glue=METRICS / "glue", **{"nyu-mll/glue": inputs / "glue", "bert-base-cased": inputs / "bert"})
        return [HERE / "on_cpu.py", output / "steps.json", NLP, *arguments]
    return program


def of_nlp(zero, program, **more):
    return Case("Accelerate", "nlp_example.py", program, zero, "transformers", launcher="accelerate", **more)


IN_A_FILE = "deepspeed_config: {deepspeed_config_file: ds_config.json}\n"
OF_NLP = [
    of_nlp("ZeRO-2 by its own fields", nlp_example()),
    of_nlp("ZeRO-2 by its own fields, fp16", nlp_example("--mixed_precision", "fp16", settings=OF_STAGE_2 + "mixed_precision: fp16\n"),
           only_tessera="DeepSpeed has no fp16 on a CPU"),
    of_nlp("ZeRO-3 by a file, bf16, accumulated", nlp_example(settings=IN_A_FILE), tolerance=BFLOAT16),
] if NLP.exists() else []

TRANSFORMERS = CHECKOUTS / "transformers"


def transformers_script(script, model, *more):
    """A script of examples/pytorch with training and evaluation by its metric."""
    def program(inputs, output, ds_config):
        lay_out(ds_config.parent, text=inputs / "text", wmt16=inputs / "wmt16", **{"nyu-mll/glue": inputs / "glue"},
                **{path.name: path for path in METRICS.iterdir()})
        return [TRANSFORMERS / "examples" / "pytorch" / script, "--model_name_or_path", inputs / model, "--output_dir", output, "--deepspeed", ds_config,
                "--do_train", "--do_eval", "--learning_rate", "1e-3", "--gradient_accumulation_steps", 2, *TRAINER, *more]
    return program


OF_TEXT = ["--train_file", "text/train.txt", "--validation_file", "text/train.txt"]
CLM = transformers_script("language-modeling/run_clm.py", "llama", "--block_size", 32, *OF_TEXT)
CLM_BF16 = transformers_script("language-modeling/run_clm.py", "llama", "--block_size", 32, "--bf16", *OF_TEXT)
MLM = transformers_script("language-modeling/run_mlm.py", "bert", "--max_seq_length", 32, "--line_by_line", *OF_TEXT)
TRANSLATION = transformers_script("translation/run_translation.py", "t5", "--dataset_name", "wmt16", "--dataset_config", "ro-en", "--source_lang", "en",
                                  "--target_lang", "ro", "--predict_with_generate", "--max_target_length", 16)
GLUE = transformers_script("text-classification/run_glue.py", "bert", "--task_name", "mrpc", "--max_seq_length", 48)
# As transformers' documentation of DeepSpeed prints it.
DOCUMENTED = (
    "examples/pytorch/translation/run_translation.py --deepspeed tests/deepspeed/ds_config_zero3.json --model_name_or_path google-t5/t5-small "
    "--per_device_train_batch_size 1 --output_dir output_dir --overwrite_output_dir --fp16 --do_train --max_train_samples 500 --num_train_epochs 1 "
    "--dataset_name wmt16 --dataset_config ro-en --source_lang en --target_lang ro").split()


def documented(without=()):
    def program(inputs, output, ds_config):
        (ds_config.parent / "output_dir").mkdir()
        lay_out(ds_config.parent, examples=TRANSFORMERS / "examples", tests=TRANSFORMERS / "tests", wmt16=inputs / "wmt16", out="output_dir",
                **{"google-t5/t5-small": inputs / "t5", "sacrebleu": METRICS / "sacrebleu"})
        return [word for word in DOCUMENTED if word not in without]
    return program


OF_TRANSFORMERS = [
    *(Case("transformers", name, program, zero, "transformers", twice=() if "3" in zero else tied) for name, program, stages, tied in (
        ("run_clm.py", CLM, ("ZeRO-1", "ZeRO-2", "ZeRO-2, offloaded", "ZeRO-3", "ZeRO-3, offloaded"), ()),
        ("run_mlm.py", MLM, ("ZeRO-2", "ZeRO-3"), ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")),
        ("run_translation.py", TRANSLATION, ("ZeRO-2, offloaded", "ZeRO-3"),
         ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")),
        ("run_glue.py", GLUE, ("ZeRO-2", "ZeRO-3, offloaded"), ())) for zero in stages),
    *(Case("transformers", "run_clm.py, bf16", CLM_BF16, zero, "transformers", config={"bf16": {"enabled": "auto"}}, tolerance=BFLOAT16)
      for zero in ("ZeRO-2", "ZeRO-3")),
    Case("transformers", "run_translation.py as documented but for --fp16", documented(without=["--fp16"]), "ZeRO-3", "transformers",
         template=TRANSFORMERS / "tests" / "deepspeed" / "ds_config_zero3.json"),
    Case("transformers", "run_translation.py as documented", documented(), "ZeRO-3", "transformers",
         template=TRANSFORMERS / "tests" / "deepspeed" / "ds_config_zero3.json", only_tessera="DeepSpeed has no fp16 on a CPU"),
] if TRANSFORMERS.exists() else []

BLOG = CHECKOUTS / "documents" / "004"


def run_bert(inputs, output, ds_config):
    """A tutorial's program for a cluster, with its ds_config.json of comments, on the four ranks that it is for."""
    lay_out(ds_config.parent, model=inputs / "bert", tokenizer=inputs / "bert-vocabulary",
            **{"data/train-00000-of-00001.parquet": inputs / "wikitext" / "train.parquet"})
    return [HERE / "on_cpu.py", "--tell-of-cuda", output / "steps.json", BLOG / "run_bert.py"]


OF_BLOGS = [
    Case("a tutorial", "run_bert.py", run_bert, environment="transformers", launcher="torchrun", ranks=4, template=BLOG / "ds_config.json"),
] if BLOG.exists() else []

CASES = [*ACCELERATE, *OF_NLP, *OF_BLOGS, *OF_TRANSFORMERS, *deepspeed_examples.CASES, *megatron_loops.CASES, *peft_examples.CASES]
