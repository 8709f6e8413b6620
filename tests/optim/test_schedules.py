"""Every schedule for 3,000 steps: Hugging Face's against transformers' own functions, DeepSpeed's against its published
formulas, written here as its classes compute them (they are stepped, ours are functions of the step)."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
TOOL = Path(os.environ.get("TESSERA_BUILD", REPOSITORY / "build" / "release")).resolve() / "tests" / "schedule_tool"
STEPS = 3000
LR = 3e-4


def ours(name, params, steps=STEPS):
    """[(lr, beta1)] of each optimizer step."""
    out = subprocess.run([str(TOOL), name, json.dumps(params), repr(LR), str(steps)], check=True, capture_output=True,
                         text=True, timeout=60).stdout
    return [tuple(map(float, line.split())) for line in out.splitlines()]


def assert_agree(got, want):
    assert len(got) == len(want) == STEPS
    for step, (a, b) in enumerate(zip(got, want), start=1):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-16), f"step {step}"


def huggingface(name, warmup, total, **extra):
    import transformers

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    schedule = transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total,
                                          scheduler_specific_kwargs=extra)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


HUGGING_FACE = [
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("linear", {}),
    ("cosine", {}),
    ("cosine", {"num_cycles": 1.5}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {}),
    ("polynomial", {"power": 2.0, "lr_end": 1e-6}),
    ("inverse_sqrt", {}),
    ("inverse_sqrt", {"timescale": 500}),
]


@pytest.mark.parametrize("warmup", [0, 1, 250])
@pytest.mark.parametrize("name, extra", HUGGING_FACE, ids=lambda value: value if isinstance(value, str) else
                         "-".join(f"{k}={v}" for k, v in value.items()) or "default")
def test_hugging_face(name, extra, warmup):
    total = 2800  # below STEPS: the end, and what comes after it
    params = dict(extra)
    if name != "constant":
        params["num_warmup_steps"] = warmup
    if name in ("linear", "cosine", "cosine_with_restarts", "polynomial"):
        params["num_training_steps"] = total
    want = huggingface(name, warmup, total, **extra)
    assert_agree([lr for lr, _ in ours(name, params)], want)


# DeepSpeed 0.19.8 -----------------------------------------------------------------------------------------------------
# Step k is taken with what the schedule computed after step k - 1, when its last_batch_iteration n was k - 2.


def gamma(n, warmup, kind):
    return math.log(n + 1) / math.log(warmup) if kind == "log" else n / warmup


def warmup_lr(n, low, high, warmup, kind, total=None):
    warmup = max(2, warmup)
    if n < 0:
        return low
    if n < warmup:
        factor = gamma(n, warmup, kind)
    else:
        factor = 1.0 if total is None else max(0.0, (total - n) / max(1.0, total - warmup))
    return low + (high - low) * factor


def warmup_cosine_lr(n, total, warmup, kind, ratio, end):
    warmup = max(2, warmup)
    if n < 0:
        return 0.0
    if n < warmup:
        return LR * (ratio + (1 - ratio) * gamma(n, warmup, kind))
    progress = min(1.0, (n - warmup + 1) / max(1, total - warmup))
    return LR * max(0.0, end + (1.0 - end) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def lr_range_test(n, low, size, rate, stairs):
    if n < 0:
        return low
    interval = (n + 1) / size
    return low * (1 + rate * (math.floor(interval) if stairs else interval))


def one_cycle(n, low, high, first, second, decay_step, decay_rate, first_stairs=0, second_stairs=0):
    """(lr, beta1), momentum between 0.8 and 0.9."""
    if n < 0:
        return low, 0.8
    total = first + second
    if n < total:
        cycle = math.floor(1 + (n + 1) / total)
        x = 1 + (n + 1) / total - cycle
        ratio = first / total
        at = (n + 1) - (cycle - 1) * total
        stairs = first_stairs if at <= first else second_stairs
        if stairs:
            size = first if at <= first else second
            done = at if at <= first else total - at
            scale = math.floor(done * stairs / size) / stairs
        else:
            scale = x / ratio if x <= ratio else (x - 1) / (ratio - 1)
        return low + (high - low) * scale, 0.9 - (0.9 - 0.8) * scale
    interval = (n - total + 1) / decay_step if decay_step else 0
    return low / (1 + decay_rate * interval), 0.9


@pytest.mark.parametrize("kind", ["log", "linear"])
@pytest.mark.parametrize("warmup", [1, 2, 700])
def test_deepspeed_warmups(kind, warmup):
    base = {"warmup_num_steps": warmup, "warmup_type": kind}
    steps = range(-1, STEPS - 1)
    rates = [lr for lr, _ in ours("WarmupLR", {**base, "warmup_min_lr": 1e-5, "warmup_max_lr": 2e-3})]
    assert_agree(rates, [warmup_lr(n, 1e-5, 2e-3, warmup, kind) for n in steps])
    rates = [lr for lr, _ in ours("WarmupDecayLR", {**base, "warmup_min_lr": 1e-5, "warmup_max_lr": 2e-3,
                                                    "total_num_steps": 2500})]
    assert_agree(rates, [warmup_lr(n, 1e-5, 2e-3, warmup, kind, total=2500) for n in steps])
    rates = [lr for lr, _ in ours("WarmupCosineLR", {**base, "total_num_steps": 2500, "warmup_min_ratio": 0.1,
                                                     "cos_min_ratio": 0.01})]
    assert_agree(rates, [warmup_cosine_lr(n, 2500, warmup, kind, 0.1, 0.01) for n in steps])


@pytest.mark.parametrize("stairs", [False, True])
def test_deepspeed_range_test(stairs):
    rates = [lr for lr, _ in ours("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 170,
                                                  "lr_range_test_step_rate": 1.3, "lr_range_test_staircase": stairs})]
    assert_agree(rates, [lr_range_test(n, 1e-4, 170, 1.3, stairs) for n in range(-1, STEPS - 1)])


@pytest.mark.parametrize("stairs", [(0, 0), (4, 5)])
def test_deepspeed_one_cycle(stairs):
    got = ours("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 600,
                            "cycle_second_step_size": 900, "cycle_first_stair_count": stairs[0],
                            "cycle_second_stair_count": stairs[1], "decay_step_size": 50, "decay_lr_rate": 0.5})
    want = [one_cycle(n, 1e-4, 1e-2, 600, 900, 50, 0.5, *stairs) for n in range(-1, STEPS - 1)]
    assert_agree([lr for lr, _ in got], [lr for lr, _ in want])
    assert_agree([beta for _, beta in got], [beta for _, beta in want])
