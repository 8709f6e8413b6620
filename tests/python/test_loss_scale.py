"""Loss scalers. The sequences were produced by DeepSpeed 0.19.8."""

import pickle

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler, DynamicLossScaler, LossScaler


def scales_after(scaler, overflows):
    found = []
    for overflow in overflows:
        scaler.update_scale(bool(overflow))
        found.append((scaler.loss_scale, scaler.cur_hysteresis))
    return found


def test_dynamic_scale_follows_deepspeed():
    scaler = DynamicLossScaler(16, scale_window=3, min_scale=1, delayed_shift=2, consecutive_hysteresis=False)
    assert scales_after(scaler, [0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0]) == [
        (16, 2), (16, 2), (16, 2), (32, 2), (32, 2), (32, 1), (16, 1), (16, 1), (8, 1), (8, 1), (8, 1), (8, 1),
        (16, 2), (16, 2)]


def test_consecutive_hysteresis_is_refilled_by_every_good_step():
    scaler = DynamicLossScaler(16, 100, 1, delayed_shift=2, consecutive_hysteresis=True)
    assert scales_after(scaler, [1, 0, 1, 0, 1, 1]) == [(16, 1), (16, 2), (16, 1), (16, 2), (16, 1), (8, 1)]


def test_at_the_minimum_it_raises_or_stays():
    scaler = DynamicLossScaler(2, 3, 1, 1, False)
    scaler.update_scale(True)
    with pytest.raises(Exception, match="already at minimum"):
        scaler.update_scale(True)
    patient = DynamicLossScaler(2, 3, 1, 1, False, raise_error_at_min_scale=False)
    assert [scale for scale, _ in scales_after(patient, [1, 1, 1])] == [1, 1, 1]


def test_a_scale_below_its_minimum_rises_to_it():
    # DeepSpeed raises where the scale equals its minimum, and otherwise takes max(scale / 2, minimum).
    scaler = DynamicLossScaler(1, 3, 4, 1, False)
    assert scales_after(scaler, [1]) == [(4, 1)]
    with pytest.raises(Exception, match="already at minimum"):
        scaler.update_scale(True)


def test_only_fp16_has_a_scale():
    arguments = {"init_scale": 4, "scale_window": 3, "min_scale": 1, "delayed_shift": 1,
                 "consecutive_hysteresis": False}
    assert CreateLossScaler(torch.bfloat16, 128, True, arguments).loss_scale == 1.0
    assert CreateLossScaler(torch.float32, 128, False, None).loss_scale == 1.0
    assert CreateLossScaler(torch.half, 128, False, None).loss_scale == 128
    assert CreateLossScaler(torch.half, 0, True, arguments).loss_scale == 4


def test_scaled_backward_and_pickles():
    weight = torch.ones(2, requires_grad=True)
    LossScaler(8).backward(weight.sum())
    assert weight.grad.tolist() == [8, 8]
    again = pickle.loads(pickle.dumps(DynamicLossScaler(16, 3, 1, 2, False)))  # checkpoints hold the object
    assert (again.cur_scale, again.dynamic, again.dtype) == (16, True, torch.half)


def test_overflow_is_found():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([1.0, float("nan"), 2.0])
    assert DynamicLossScaler(16, 3, 1, 2, False).has_overflow([weight])
    weight.grad = torch.ones(3)
    assert not DynamicLossScaler(16, 3, 1, 2, False).has_overflow([weight])
