"""Hugging Face's Trainer on every tiny model: plainly (DDP), and with a ds_config at stages 0 to 3. Run by test_trainer.py
as two ranks; prints one line of JSON, {"<kind>": {"plain": …, "0": …, "3": …, "3 without zero.Init": …}} with the losses,
norms and evaluations of a run, what is different in the saved weights, and what a resumed run repeats.
"""

import json
import os
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import torch.distributed as dist  # noqa: E402
from accelerate import PartialState  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import Trainer, TrainingArguments, logging  # noqa: E402
from transformers.integrations.deepspeed import unset_hf_deepspeed_config  # noqa: E402

import tiny_models  # noqa: E402

logging.set_verbosity_error()
STEPS, SAVED = 4, 2


def ds_config(stage):
    return {
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto", "zero_allow_untested_optimizer": True, "steps_per_print": 1e9,
        "zero_optimization": {
            "stage": stage, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 0,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }


def forget():
    """The process-wide state of a run: programs of users train once."""
    unset_hf_deepspeed_config()
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)


def engine_arguments(stage):
    """Of TrainingArguments. stage None: without DeepSpeed."""
    if stage is None:
        return {"use_cpu": True, "ddp_backend": "gloo"}
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    PartialState(backend="gloo")  # Accelerate picks no backend by itself where there is no accelerator
    return {"deepspeed": ds_config(stage), "accelerator_config": {"use_configured_state": True}}


def arguments(folder, stage):
    return TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=STEPS,
        learning_rate=1e-3, logging_steps=1, save_steps=SAVED, eval_strategy="steps", eval_steps=SAVED, report_to=[],
        disable_tqdm=True, seed=1, weight_decay=0.1, **engine_arguments(stage))


def curve(trainer):
    history = trainer.state.log_history
    return {"loss": [row["loss"] for row in history if "loss" in row],
            "grad_norm": [row["grad_norm"] for row in history if "grad_norm" in row],
            "eval_loss": [row["eval_loss"] for row in history if "eval_loss" in row]}


def run(kind, source, folder, stage, with_init=True):
    def trainer():
        early = None if with_init else tiny_models.load(kind, source)
        args = arguments(folder, stage)
        model = early if early is not None else tiny_models.load(kind, source)
        return Trainer(model=model, args=args, train_dataset=tiny_models.rows(32), eval_dataset=tiny_models.rows(8, 1))

    first = trainer()
    partitioned = all(parameter.numel() == 0 for parameter in first.model.parameters() if not parameter.requires_grad
                      or "LoRA" not in kind)
    first.train()
    result = {"whole": curve(first), "made_partitioned": partitioned}
    first.save_model(str(folder / "final"))
    dist.barrier()
    forget()
    result["weights"] = saved_weights(kind, source, folder / "final")
    if with_init:
        again = trainer()
        again.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED}"))
        result["resumed"] = curve(again)
        forget()
    return result


def saved_weights(kind, source, folder):
    """As a user loads them."""
    if "LoRA" in kind:
        return load_file(folder / "adapter_model.safetensors")
    return tiny_models.load(kind, folder).state_dict()


def difference(weights, reference):
    if set(weights) != set(reference):
        return f"other names: {sorted(set(weights) ^ set(reference))}"
    return max(float((weights[name] - value).abs().max()) for name, value in reference.items())


def main(folder, kinds):
    results = {}
    dist.init_process_group("gloo")
    folder = Path(folder)
    for kind in kinds:
        source = folder / f"{tiny_models.base_of(kind)} of {kind}"
        if dist.get_rank() == 0:
            tiny_models.make(kind).save_pretrained(source)
        dist.barrier()
        runs = {"plain": run(kind, source, folder / f"{kind}-plain", None)}
        for stage in range(4):
            runs[str(stage)] = run(kind, source, folder / f"{kind}-{stage}", stage)
        runs["3 without zero.Init"] = run(kind, source, folder / f"{kind}-3-whole", 3, with_init=False)
        reference = runs["plain"]["weights"]
        for result in runs.values():
            result["weights"] = difference(result["weights"], reference)
        results[kind] = runs
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
