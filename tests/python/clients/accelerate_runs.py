"""A plain Accelerate loop with a DeepSpeedPlugin at each stage, beside the same loop without (DDP). Run by
test_accelerate.py as two ranks; prints JSON: {"<case>": {"loss": […], "resumed": […], "weights": difference}}.
"""

import json
import os
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from accelerate import Accelerator, DeepSpeedPlugin, PartialState  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import DummyOptim, DummyScheduler  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import tiny_models  # noqa: E402

STEPS, SAVED = 6, 4  # micro steps; two make an update

NAMED = {"optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
         "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                           "warmup_num_steps": "auto", "total_num_steps": "auto"}}}


def config_with(stage, **offload):
    return {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True, **offload}, **NAMED}


CPU = {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
CASES = {
    "plain": None,
    **{f"stage {stage}": lambda stage=stage: DeepSpeedPlugin(
        zero_stage=stage, gradient_accumulation_steps=2, gradient_clipping=1.0, zero3_save_16bit_model=True)
       for stage in range(4)},
    "offloaded": lambda: DeepSpeedPlugin(
        zero_stage=2, gradient_accumulation_steps=2, gradient_clipping=1.0, offload_optimizer_device="cpu"),
    "named in the configuration": lambda: DeepSpeedPlugin(hf_ds_config=config_with(2)),
    "named in the configuration, offloaded": lambda: DeepSpeedPlugin(hf_ds_config=config_with(3, **CPU)),
}


def forget():
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)


def prepared(kind, plugin):
    if plugin is None:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    else:
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        PartialState(backend="gloo")
        accelerator = Accelerator(deepspeed_plugin=plugin(), gradient_accumulation_steps=2)
    model = tiny_models.make(kind)
    named = plugin is not None and "optimizer" in accelerator.state.deepspeed_plugin.deepspeed_config
    if named:
        optimizer = DummyOptim(model.parameters(), lr=1e-3, weight_decay=0.1)
        scheduler = DummyScheduler(optimizer, total_num_steps=12, warmup_num_steps=4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = DataLoader(tiny_models.rows(2 * 2 * STEPS), batch_size=2)
    return accelerator, *accelerator.prepare(model, optimizer, scheduler, loader)


def train(kind, plugin, folder, resumes):
    accelerator, model, optimizer, scheduler, loader = prepared(kind, plugin)
    if resumes:
        accelerator.load_state(str(folder))
    losses, rates = [], []
    for number, batch in enumerate(loader):
        if resumes and number < SAVED:
            continue
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(float(accelerator.gather(loss.detach()[None]).mean()))
        rates.append(optimizer.param_groups[0]["lr"])
        if number + 1 == SAVED and not resumes:
            accelerator.save_state(str(folder))
    weights = accelerator.get_state_dict(model)
    unwrapped = type(accelerator.unwrap_model(model)).__name__
    accelerator.free_memory()
    forget()
    return {"loss": losses, "lr": rates, "unwrapped": unwrapped}, weights


def difference(weights, reference):
    return max(float((weights[name] - value).abs().max()) for name, value in reference.items())


def main(folder, kind="gpt2"):
    dist.init_process_group("gloo")
    results, reference = {}, None
    for number, (case, plugin) in enumerate(CASES.items()):
        place = Path(folder) / str(number)
        result, weights = train(kind, plugin, place, resumes=False)
        dist.barrier()
        if plugin is not None:
            result["resumed"] = train(kind, plugin, place, resumes=True)[0]["loss"]
        if dist.get_rank() == 0:
            reference = reference or {name: value.clone() for name, value in weights.items()}
            result["weights"] = difference(weights, reference)
        results[case] = result
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
