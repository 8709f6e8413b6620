"""Keys of a ds_config, and arguments, that change what an engine does: run as two ranks by test_engine_keys.py. Prints JSON, {"<function>": what rank 0 got}."""

import io
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from named_runs import NamedRuns  # noqa: E402
from small_model import adamw, config, made, own, plainly_trained, start, trained  # noqa: E402

run = NamedRuns()


@run
def every_step_is_a_boundary():
    """managed_gradient_accumulation false: two micro batches a step, then one, which the configuration does not say."""
    model = made()
    expected = plainly_trained(model, adamw(model), steps=2, accumulation=2)
    results, counts, boundaries = [], [], []
    for stage in range(4):
        engine, *_ = start(config=config(stage, managed_gradient_accumulation=False))
        losses, norms = [], []
        for number in range(4):
            loss = engine(*own(number))
            engine.backward(loss / 2)
            losses.append(float(loss))
            boundaries.append(engine.is_gradient_accumulation_boundary())
            if number % 2 == 1:
                engine.step()
                norms.append(float(engine.get_global_grad_norm()))
        results.append((losses, norms))
        engine.backward(engine(*own(4)))
        engine.step()
        counts.append([engine.global_steps, engine.global_samples])
    refused = {}
    for what, call in {"boundary": lambda: engine.set_gradient_accumulation_boundary(True),
                       "block": lambda: engine.coalesce_grad_reduction().__enter__()}.items():
        try:
            call()
        except AssertionError as error:
            refused[what] = str(error)
    return {"expected": expected, "results": results, "counts": counts, "boundaries": boundaries, "refused": refused}


@run
def master_weights_of_a_checkpoint():
    """load_from_fp32_weights false: they are what bf16 holds of them. Over stages, whether they are, and were before."""
    found = {}
    for stage in range(4):
        named = config(stage, bf16={"enabled": True})
        engine, *_ = start(config=named)
        trained(engine)
        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder)
        engine.save_checkpoint(folder[0])
        masters = []
        for loads_fp32 in (True, False):
            named["zero_optimization"]["load_from_fp32_weights"] = loads_fp32
            other, *_ = start(config=named)
            other.load_checkpoint(folder[0])
            masters.append([deepspeed.utils.safe_get_full_fp32_param(parameter) for parameter in other.module.parameters()])
        whole, rounded = masters
        found[stage] = {"differ": not all(map(torch.equal, whole, rounded)),
                        "are rounded": all(torch.equal(each.bfloat16().float(), other) for each, other in zip(whole, rounded))}
    return found


@run
def dtypes_of_moments():
    """fp32_optimizer_states false: that of the master weights. By the dtype of these, the bytes a parameter that it saves a rank, and
    whether the loss falls."""
    found = {}
    for masters_in_bf16 in (False, True):
        kept = []
        for wide in (True, False):
            engine, *_ = start(config={
                "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
                "bf16": {"enabled": True, "bf16_master_weights_and_grads": masters_in_bf16},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "fp32_optimizer_states": wide}}})
            losses, _ = trained(engine)
            kept.append(engine.core.model_state_bytes)
        parameters = sum(parameter.numel() for parameter in engine.module.parameters())
        found[f"masters in bf16: {masters_in_bf16}"] = [(kept[0] - kept[1]) * dist.get_world_size() / parameters, losses[-1] < losses[0]]
    return found


@run
def weights_loaded_by_the_program():
    """custom_load_fn, which doubles one weight on its way; by stage, what became of the weights and of the moments."""
    found = {}
    for stage in range(4):
        engine, *_ = start(config=config(stage))
        trained(engine, steps=2)
        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder)
        engine.save_checkpoint(folder[0])

        def load(src, dst):
            dst.load_state_dict({name: 2 * value if name == "scale" else value for name, value in src.items()})

        other, *_ = start(config=config(stage))
        other.load_checkpoint(folder[0], custom_load_fn=load)
        of_both = [{name: [read(parameter) for read in (deepspeed.utils.safe_get_full_fp32_param,
                                                        lambda p: deepspeed.utils.safe_get_full_optimizer_state(p, "exp_avg"))]
                    for name, parameter in each.module.named_parameters()} for each in (engine, other)]
        found[stage] = {"weights": all(torch.equal((2 if name == "scale" else 1) * of_both[0][name][0], of_both[1][name][0]) for name in of_both[0]),
                        "moments": all(torch.equal(of_both[0][name][1], of_both[1][name][1]) for name in of_both[0])}
    return found


@run
def an_optimizers_own_state():
    """state_dict() and load_state_dict() of what initialize returns, by stage and optimizer: the next steps, and where it does not fit."""
    makers = {"AdamW": adamw, "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)}
    found = {}
    for stage in (1, 2, 3):
        for name, make in makers.items():
            model, other_model = made(), made()
            engine, optimizer, *_ = start(model, optimizer=make(model), config=config(stage, optimizer=False))
            trained(engine, steps=2)
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            saved = torch.load(file, weights_only=False)
            other, other_optimizer, *_ = start(other_model, optimizer=make(other_model), config=config(stage, optimizer=False))
            if name == "RMSprop":
                trained(other, steps=1)  # its own state begins with its first step
            other_optimizer.load_state_dict(saved)
            found[f"{name}, stage {stage}"] = trained(engine, steps=2, first=2) == trained(other, steps=2, first=2)
    try:
        other_optimizer.load_state_dict({**saved, "ranks": 7})
    except Exception as error:
        found["refused"] = [type(error).__name__, str(error)]
    return found


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    run.print_results(sys.argv[1:])
