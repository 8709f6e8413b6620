"""Scaling with the number of ranks and with the size of the model: rows of several parts beside each other."""

from harness.samples import markdown
from harness.training_cases import Case

PARTS = ("scaling-1-rank", "training-micro-1-fp32", "scaling-4-ranks", "training-bert-base")  # micro batch 1, fp32
CASES = [Case(framework, stage) for framework, stage in (
    ("tessera", 0), ("tessera", 3), ("ddp", 0), ("fsdp2", 3), ("deepspeed", 0), ("deepspeed", 3))]


def table(samples_of):
    """None where nothing of it was measured."""
    rows = []
    for part in PARTS:
        samples = samples_of.get(part)
        for setting in samples.settings() if samples else []:
            rows.append([setting, *(cell(samples, setting, case) for case in CASES)])
    return markdown(["", *(f"{case.name}:" for case in CASES)], rows) if rows else None


def cell(samples, setting, case):
    speed, ratio = samples.median(setting, case.name, "tokens/s"), samples.ratio(setting, "step, s", case.name, case.bound.name)
    return f"{speed:.0f} ({ratio.middle:.2f})" if speed and ratio else ""
