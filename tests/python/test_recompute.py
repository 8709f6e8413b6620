"""Activation checkpointing: the gradients of a plain run, with the inputs kept elsewhere."""

import copy

import deepspeed
import pytest
import torch
from deepspeed.runtime.activation_checkpointing import checkpointing
from torch import nn


@pytest.fixture(autouse=True)
def settings():
    names = ("PARTITION_ACTIVATIONS CONTIGUOUS_CHECKPOINTING CPU_CHECKPOINT SYNCHRONIZE PROFILE_TIME mpu num_layers "
             "timers deepspeed_checkpointing_enabled").split()
    before = {name: getattr(checkpointing, name) for name in names}
    yield
    for name, value in before.items():
        setattr(checkpointing, name, value)


def gradients(module, call, value):
    module, value = copy.deepcopy(module), value.clone().requires_grad_()
    torch.manual_seed(5)
    output = call(module, value)
    output = output[0] if isinstance(output, tuple) else output
    output.square().sum().backward()
    return [output.detach(), value.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("checkpoint", [deepspeed.checkpointing.checkpoint, checkpointing.non_reentrant_checkpoint])
@pytest.mark.parametrize("block", [{}, {"cpu_checkpointing": True}, {"synchronize_checkpoint_boundary": True}])
def test_same_gradients_and_same_dropout(checkpoint, block):
    deepspeed.checkpointing.configure(None, deepspeed_config={"train_batch_size": 1, "activation_checkpointing": block})
    module = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Tanh(), nn.Linear(64, 64))
    value = torch.randn(32, 64)
    plain = gradients(module, lambda m, x: m(x), value)
    again = gradients(module, lambda m, x: checkpoint(m, x), value)
    assert all(torch.equal(a, b) for a, b in zip(plain, again))


def test_the_function_runs_again_in_backward():
    calls = []

    def function(x, *, scale, other):
        calls.append(1)
        return x * scale, other

    x, scale = torch.ones(3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    output, other = deepspeed.checkpointing.checkpoint(function, x, scale=scale, other=("text", None))
    assert other == ("text", None) and len(calls) == 1
    output.sin().sum().backward()
    assert len(calls) == 1 + 1 or len(calls) == 1  # x * scale needs its inputs again, or has them
    assert torch.allclose(x.grad, 2 * torch.cos(torch.full((3,), 2.0)))
    assert torch.allclose(scale.grad, 3 * torch.cos(torch.tensor(2.0)))


def test_named_streams_are_the_same_in_both_runs():
    deepspeed.checkpointing.model_parallel_cuda_manual_seed(11)
    streams = deepspeed.checkpointing.get_cuda_rng_tracker()
    drawn = []

    def function(x):
        with streams.fork():
            drawn.append(torch.rand(4))
        return (x * drawn[-1]).sin()

    x = torch.ones(4, requires_grad=True)
    deepspeed.checkpointing.checkpoint(function, x).sum().backward()
    with streams.fork():
        after = torch.rand(4)
    assert len(drawn) == 2 and torch.equal(*drawn) and not torch.equal(after, drawn[0])


def test_streams_leave_the_devices_own_stream_alone():
    streams = checkpointing.CudaRNGStatesTracker()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    streams.add("a", 7)
    with streams.fork("a"):
        torch.rand(5)
    assert torch.equal(torch.rand(2), expected)
    with pytest.raises(Exception, match="seed 7"):
        streams.add("b", 7)
    with pytest.raises(Exception, match="no random stream named b"):
        with streams.fork("b"):
            pass


@pytest.mark.parametrize("device", [-1, 0, "cpu", torch.device("cpu")])
def test_a_state_of_random_numbers_is_put_back(device):
    """Megatron's programs take the function by this name when they are imported."""
    state = torch.get_rng_state()
    first = torch.rand(3)
    checkpointing._set_cuda_rng_state(state, device)
    assert torch.equal(torch.rand(3), first)


def test_contiguous_checkpointing_needs_its_companions():
    with pytest.raises(AssertionError, match="partition_activations"):
        deepspeed.checkpointing.configure(None, contiguous_checkpointing=True)
    with pytest.raises(AssertionError, match="number of layers"):
        deepspeed.checkpointing.configure(None, partition_activations=True, contiguous_checkpointing=True)
    deepspeed.checkpointing.configure(None, partition_activations=True, contiguous_checkpointing=True,
                                      num_checkpoints=2)
    assert deepspeed.checkpointing.is_configured()
