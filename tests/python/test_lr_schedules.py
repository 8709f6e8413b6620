"""Schedules over a torch optimizer. Sequences of section "numbers" were produced by DeepSpeed 0.19.8."""

import argparse
import math

import pytest
import torch
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.lr_schedules import LRRangeTest, OneCycle, WarmupCosineLR, WarmupDecayLR, WarmupLR
from tessera.schedules import from_config


def adamw(*lrs):
    return torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in lrs or (0.1,)])


def rates(schedule, steps):
    group = schedule.optimizer.param_groups[0]
    found = [group["lr"]]
    for _ in range(steps):
        schedule.step()
        found.append(group["lr"])
    return found


@pytest.mark.parametrize("make, expected", [
    (lambda o: WarmupLR(o, warmup_num_steps=4, warmup_type="linear"), [0, 0, .025, .05, .075, .1, .1]),
    (lambda o: WarmupDecayLR(o, 6, warmup_num_steps=2, warmup_type="linear"),
     [0, 0, .0005, .001, .00075, .0005, .00025, 0]),
    (lambda o: WarmupCosineLR(o, 6, warmup_num_steps=2, warmup_type="linear"),
     [0, 0, .05, .085357, .050005, .014653, 1e-5, 1e-5]),
    (lambda o: LRRangeTest(o, lr_range_test_step_size=2), [.001, .0015, .002, .0025, .003]),
    (lambda o: OneCycle(o, .1, 1, cycle_first_step_size=2, decay_step_size=1, decay_lr_rate=1),
     [.1, .55, 1, .55, .1, .05, .033333, .025, .02]),
])
def test_numbers(make, expected):
    assert rates(make(adamw()), len(expected) - 1) == pytest.approx(expected, abs=1e-6)


def test_log_warmup_is_ln_of_the_step_over_ln_of_the_steps():
    schedule = WarmupLR(adamw(), warmup_num_steps=10)
    schedule.step(3)
    assert schedule.get_lr() == pytest.approx([0.1 * math.log(4) / math.log(10)])


def test_each_group_keeps_its_own_rate():
    optimizer = adamw(0.1, 0.2)
    schedule = WarmupLR(optimizer, warmup_num_steps=10)
    schedule.step(10)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.2])
    with pytest.raises(ValueError, match="3 values.*2 parameter groups"):
        WarmupLR(optimizer, warmup_min_lr=[0.1, 0.2, 0.3])


def test_one_cycle_moves_the_momentum_the_other_way():
    optimizer = adamw()
    schedule = OneCycle(optimizer, 0.1, 1.0, cycle_first_step_size=4, cycle_min_mom=0.8, cycle_max_mom=0.9)
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.8, 0.99))
    schedule.step(3)  # the top: lr is highest, momentum lowest
    assert schedule.get_lr() == pytest.approx([1.0]) and schedule.get_mom()[0] == pytest.approx((0.8, 0.99))
    schedule.step(7)
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.9, 0.99))


def test_attributes():
    """What DeepSpeed's classes make of their arguments: a warm-up has at least 2 steps, a cycle falls as long as it rises."""
    schedule = WarmupLR(adamw(0.1, 0.2), warmup_min_lr=[0.0, 0.05], warmup_num_steps=1)
    assert (schedule.warmup_num_steps, schedule.warmup_type) == (2, "log")
    assert (schedule.min_lrs, schedule.max_lrs) == ([0.0, 0.05], [0.1, 0.2])
    assert schedule.delta_lrs == pytest.approx([0.1, 0.15])
    schedule = OneCycle(adamw(), 0.1, 1.0, cycle_first_step_size=3)
    assert (schedule.first_step_size, schedule.second_step_size, schedule.total_size, schedule.step_ratio) == (3, 3, 6, 0.5)
    assert (schedule.min_moms, schedule.max_moms) == ([(0.8, 0.99)], [(0.9, 0.99)])
    assert LRRangeTest(adamw(0.1, 0.2), lr_range_test_min_lr=0.01).min_lr == [0.01, 0.01]


def test_without_betas_the_momentum_stays():
    schedule = OneCycle(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), 0.1, 1.0)
    schedule.step()
    assert schedule.get_mom() is None


def test_a_rate_that_is_a_tensor_stays_that_tensor():
    rate = torch.tensor(0.1, dtype=torch.float64)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)
    schedule = WarmupLR(optimizer, warmup_num_steps=2, warmup_type="linear")
    schedule.step(1)
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.05)


def test_the_step_is_the_whole_state():
    first = WarmupCosineLR(adamw(), 20, warmup_num_steps=4)
    for _ in range(7):
        first.step()
    second = WarmupCosineLR(adamw(), 20, warmup_num_steps=4)
    assert first.state_dict() == {"last_batch_iteration": 6}
    second.load_state_dict(first.state_dict())
    first.step(), second.step()
    assert first.get_last_lr() == second.get_last_lr()


# What "auto" becomes where transformers' Trainer is not told of a warm-up. DeepSpeed's classes refuse it.
@pytest.mark.parametrize("make", [lambda o: WarmupLR(o, warmup_num_steps=0), lambda o: WarmupDecayLR(o, 6, warmup_num_steps=0),
                                  lambda o: WarmupCosineLR(o, 6, warmup_num_steps=0)])
def test_no_warm_up_is_the_shortest_and_is_told(capfd, make):
    assert make(adamw()).warmup_num_steps == 2
    assert "warmup_num_steps is 0" in capfd.readouterr().err
    params = {"warmup_num_steps": 0, "total_num_steps": 6}
    assert from_config({"type": "WarmupDecayLR", "params": params}, adamw()).warmup_num_steps == 2


def test_get_last_lr_needs_a_step_after_a_resume():
    with pytest.raises(AssertionError, match="need to call step"):
        WarmupLR(adamw(), last_batch_iteration=5).get_last_lr()


@pytest.mark.parametrize("make", [
    lambda o: WarmupLR(o, warmup_num_steps=-1),
    lambda o: WarmupLR(o, warmup_num_steps=1.5),
    lambda o: WarmupCosineLR(o, 10, warmup_num_steps=-5),
    lambda o: LRRangeTest(o, lr_range_test_step_size=0),
    lambda o: OneCycle(o, 0.1, 1, cycle_first_step_size=0),
    lambda o: OneCycle(o, 0.1, 1, cycle_second_step_size=-1),
])
def test_refused(make):
    with pytest.raises(ValueError):
        make(adamw())


def test_from_a_config():
    assert isinstance(from_config({"type": "WarmupLR", "params": {"warmup_num_steps": 3}}, adamw()), WarmupLR)
    assert isinstance(from_config({"type": "StepLR", "params": {"step_size": 3}}, adamw()),
                      torch.optim.lr_scheduler.StepLR)
    with pytest.raises(AssertionError, match="'Nonsense'"):
        from_config({"type": "Nonsense"}, adamw())


def test_flags():
    parser = lr_schedules.add_tuning_arguments(argparse.ArgumentParser())
    block, problem = lr_schedules.get_config_from_args(parser.parse_args(
        ["--lr_schedule", "WarmupLR", "--warmup_max_lr", "0.3"]))
    assert problem is None and block["type"] == "WarmupLR" and block["params"]["warmup_max_lr"] == 0.3
    assert lr_schedules.get_lr_from_config(block) == (0.3, "")
    assert lr_schedules.get_config_from_args(parser.parse_args([]))[0] is None
    assert lr_schedules.get_lr_from_config({"type": "Nonsense", "params": {}})[0] is None
