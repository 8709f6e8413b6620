"""A schedule has one owner: a run begun with `tessera train` goes on in a Python program with the next step's learning rate,
and the other way round. The rates are those of DeepSpeed's documents (the header of tessera/optim/schedule.h) and of a run that
was never stopped."""

import json
import math
from pathlib import Path

import pytest
from fixtures import texts, tiny_bert  # noqa: F401
from ranks import run_for_json
from tessera_runs import metrics, rows_of_metrics, tessera, train, train_arguments, write_run_file

PROGRAM = Path(__file__).with_name("schedule_runs.py")
LR, WARMUP, TOTAL, STEPS, HALF = 2e-3, 4, 12, 8, 3


def warm(n):
    return math.log(n + 1) / math.log(WARMUP)


def warmup_lr(n):
    return 0 if n < 0 else LR * (warm(n) if n < WARMUP else 1)


def warmup_decay_lr(n):
    return 0 if n < 0 else LR * (warm(n) if n < WARMUP else (TOTAL - n) / (TOTAL - WARMUP))


def warmup_cosine_lr(n):
    if n < 0:
        return 0
    done = (n - WARMUP + 1) / (TOTAL - WARMUP)
    return LR * (warm(n) if n < WARMUP else 1e-4 + (1 - 1e-4) * (1 + math.cos(math.pi * done)) / 2)


def linear(n):  # transformers' name, which DeepSpeed has no class for
    return LR * ((n + 1) / WARMUP if n + 1 < WARMUP else 1 - (n + 1 - WARMUP) / (TOTAL - WARMUP))


SCHEDULES = {
    "WarmupLR": (warmup_lr, {"warmup_num_steps": WARMUP}),
    "WarmupDecayLR": (warmup_decay_lr, {"warmup_num_steps": WARMUP, "total_num_steps": TOTAL, "warmup_max_lr": LR}),
    "WarmupCosineLR": (warmup_cosine_lr, {"warmup_num_steps": WARMUP, "total_num_steps": TOTAL}),
    "linear": (linear, {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL}),
}


def settings(name, stage):
    return {"train_batch_size": 4, "zero_optimization": {"stage": stage}, "optimizer": {"type": "AdamW", "params": {"lr": LR}},
            "scheduler": {"type": name, "params": SCHEDULES[name][1]}}


class Runs:
    def __init__(self, name, stage, model, texts, folder):  # noqa: F811
        self.config, self.model, self.folder = settings(name, stage), model, folder
        self.expected = [SCHEDULES[name][0](n) for n in range(-1, STEPS)]  # of steps 1, 2, …
        self.run_file = write_run_file(folder, {
            "model": {"path": str(model), "init": "pretrained"}, "task": "mlm",
            "data": {"train": str(texts / "train.parquet"), "max_length": 16},
            "training": {"max_steps": STEPS}, "deepspeed": self.config})

    def of_train(self, output, steps, resume=None):
        train(self.run_file, 1, {"output": self.folder / output, "training.max_steps": steps}, resume=resume)
        return self.folder / output / "checkpoints"

    def of_python(self, **task):
        return run_for_json(PROGRAM, json.dumps({"model": str(self.model), "config": self.config, **task}), count=1)


@pytest.mark.sample("WarmupDecayLR-2", "WarmupCosineLR-3")
@pytest.mark.parametrize("name, stage", [("WarmupLR", 0), ("WarmupDecayLR", 2), ("WarmupCosineLR", 3), ("linear", 1)])
def test_a_run_goes_on_at_the_other_door_with_the_next_steps_rate(name, stage, tiny_bert, texts, tmp_path):  # noqa: F811
    runs = Runs(name, stage, tiny_bert, texts, tmp_path)
    runs.of_train("whole", STEPS)
    whole = [line["lr"] for line in metrics(tmp_path / "whole")]
    assert whole == pytest.approx(runs.expected[:STEPS], rel=1e-12)

    half = runs.of_train("half", HALF)
    rates = runs.of_python(load=str(half), steps=STEPS - HALF)
    assert rates[:-1] == whole[HALF:] and rates[-1] == pytest.approx(runs.expected[STEPS], rel=1e-12)

    rates = runs.of_python(save=str(tmp_path / "python"), steps=HALF)
    assert rates == whole[:HALF + 1]
    runs.of_train("resumed", STEPS, resume=tmp_path / "python")
    rows = rows_of_metrics(tmp_path / "resumed")
    assert [row["step"] for row in rows] == list(range(HALF + 1, STEPS + 1))
    assert [row["lr"] for row in rows] == whole[HALF:]


def test_the_schedule_goes_on_where_it_is_and_not_where_its_steps_would_be(tiny_bert, texts, tmp_path):  # noqa: F811
    runs = Runs("WarmupDecayLR", 1, tiny_bert, texts, tmp_path)
    for how in ({}, {"as_earlier_versions": True}):
        folder = str(tmp_path / f"python{len(how)}")
        assert runs.of_python(save=folder, steps=2, jump=7, **how)[-1] == pytest.approx(warmup_decay_lr(7), rel=1e-12)
        assert runs.of_python(load=folder, steps=1) == pytest.approx([warmup_decay_lr(7), warmup_decay_lr(8)], rel=1e-12)
    runs.of_train("resumed", 4, resume=tmp_path / "python0")
    assert [row["lr"] for row in rows_of_metrics(tmp_path / "resumed")] == pytest.approx(
        [warmup_decay_lr(7), warmup_decay_lr(8)], rel=1e-12)


def test_tessera_train_says_that_a_python_program_notes_no_place_in_the_data(tiny_bert, texts, tmp_path):  # noqa: F811
    runs = Runs("WarmupLR", 0, tiny_bert, texts, tmp_path)
    runs.of_python(save=str(tmp_path / "python"), steps=1)
    result = tessera(*train_arguments(runs.run_file, 1, {"output": tmp_path / "out", "training.max_steps": 2},
                                      tmp_path / "python"))
    assert result.code == 0 and "notes no place in the data" in result.err, str(result)
