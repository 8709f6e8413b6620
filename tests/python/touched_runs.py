"""What a program does to parameters and gradients between the engine's passes, as two ranks: run by test_touched.py. Each rank has the same batches, so
that a plain loop over them is what all of it is compared with.
"""

import logging
import sys
import tempfile

import deepspeed
import torch
import torch.distributed as dist
from named_runs import NamedRuns
from tessera import clipping_by_hand
from told_runs import logged
from torch.nn.utils import clip_grad_value_

run = NamedRuns()
STAGES = range(4)


def warned(work):
    """What Tessera warns of meanwhile."""
    return logged(work, "WARNING", logging.getLogger("tessera"))


def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def start(stage, module, accumulation=1, **more):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return deepspeed.initialize(model=module, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": accumulation, "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more})[:2]


def loss_of(module, size=1.0):
    dtype = next(module.parameters()).dtype
    return (module(torch.full((1, 4), size, dtype=dtype)).float() - 3).square().mean()


def whole(engine):
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return engine.module.weight.detach().float().tolist()


@run
def gradients_clipped_by_hand():
    """What is said by stage, of an engine's parameters and of others. The warning comes once a process: here it comes for each stage."""
    found = {}
    for stage in STAGES:
        clipping_by_hand._said = False
        engine, _ = start(stage, linear())
        engine.backward(loss_of(engine))
        others = linear()
        loss_of(others).backward()
        found[stage] = [warned(lambda: clip(parameters, 1.0)) for clip in (torch.nn.utils.clip_grad_norm_, clip_grad_value_)
                        for parameters in (others.parameters(), engine.parameters(), engine.parameters())]
        found[f"{stage} others"] = float(torch.nn.utils.clip_grad_norm_(others.parameters(), 0.5)), float(others.weight.grad.norm())
        engine.step()
    return found


@run
def data_given_to_a_parameter():
    """Losses by stage where weights are clipped as a WGAN's, and a plain loop's."""
    def clip(module):
        for parameter in module.parameters():
            parameter.data = parameter.data.clamp(-0.3, 0.3)

    plain = linear()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        loss = loss_of(plain)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        clip(plain)
    found = {"plain": losses}
    for stage in STAGES:
        engine, _ = start(stage, linear())
        found[stage] = []
        for _ in range(4):
            loss = loss_of(engine)
            engine.backward(loss)
            engine.step()
            found[stage].append(loss.item())
            with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
                clip(engine.module)
    return found


@run
def data_given_before_a_save():
    """The weight that another engine loads, by stage."""
    found = {}
    for stage in range(3):
        engine, _ = start(stage, linear(), bf16={"enabled": stage == 2})
        weight = engine.module.weight
        weight.data = torch.full_like(weight, 7)
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        engine.save_checkpoint(folder[0])
        other, _ = start(stage, linear(), bf16={"enabled": stage == 2})
        other.load_checkpoint(folder[0])
        found[stage] = other.module.weight.float().unique().tolist()
    return found


@run
def data_of_another_dtype():
    engine, _ = start(1, linear())
    engine.module.to(torch.float64)
    engine.backward(loss_of(engine))
    try:
        engine.step()
    except Exception as error:
        return [type(error).__name__, str(error)]


@run
def gradients_dropped():
    """The weights after a bad batch, zero_grad() and a good one, by stage and by whose zero_grad(); and without the bad one."""
    found = {}
    for stage in STAGES:
        for how in ("nothing bad", "engine", "optimizer"):
            engine, optimizer = start(stage, linear())
            if how != "nothing bad":
                engine.backward(loss_of(engine, 100.0))
                (engine if how == "engine" else optimizer).zero_grad()
            engine.backward(loss_of(engine))
            engine.step()
            found[f"{stage} {how}"] = whole(engine)
    return found


@run
def gradients_under_way():
    """The sums of the weights' moves where zero_grad() comes before each of two micro batches, by stage and by whose; and what is said."""
    def two_micro_batches(engine, dropping):
        for size in (10.0, 1.0):
            dropping.zero_grad()
            engine.backward(engine(torch.full((1, 4), size)).sum())
            engine.step()

    found, said = {}, {}
    for stage in STAGES:
        for how in ("engine", "optimizer"):
            engine, optimizer = start(stage, linear(), accumulation=2)
            before = torch.tensor(whole(engine))
            said[f"{stage} {how}"] = warned(lambda: two_micro_batches(engine, engine if how == "engine" else optimizer)).count("its gradients stay")
            found[f"{stage} {how}"] = (before - torch.tensor(whole(engine))).mean().item() / 0.1
    return {"moved": found, "said": said}


@run
def weights_written_in_16_bits():
    """By stage, a weight after a write in GatheredParameters and a step that changes little; and one element's fp32 value that nobody wrote to."""
    found = {}
    for stage in STAGES:
        engine, _ = start(stage, linear(), bf16={"enabled": True})
        kept = deepspeed.utils.safe_get_full_fp32_param(engine.module.weight)[1].tolist()
        with deepspeed.zero.GatheredParameters([engine.module.weight], modifier_rank=0), torch.no_grad():
            engine.module.weight[0].fill_(0.25)
        engine.backward(engine(torch.zeros(1, 4, dtype=torch.bfloat16)).float().sum())
        engine.step()
        now = deepspeed.utils.safe_get_full_fp32_param(engine.module.weight)
        found[stage] = {"written": now[0].tolist(), "kept": now[1].tolist() == kept}
    return found


@run
def double_precision():
    """What is said of a model in float64, and its dtype then."""
    module = linear().double()
    said = warned(lambda: start(1, module))
    return {"said": said, "dtype": str(module.weight.dtype)}


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    run.print_results(sys.argv[1:])
