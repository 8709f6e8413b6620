"""Keys of the block "optimizer" that the Python optimizers read: honoured, or refused by name."""

import sys
import types

import pytest
import tessera
import torch
from tessera import _core, optimizers
from tessera.zero import Init
from torch import nn


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def losses(take_step, model):
    """Of four steps on one input; take_step(loss) makes backward and step."""
    found = []
    for _ in range(4):
        loss = model(torch.ones(1, 4)).square().sum()
        found.append(loss.item())
        take_step(loss)
    return found


def by_block(type_name, **params):
    model = made()
    engine, *_ = tessera.initialize(model=model, config={
        "train_batch_size": 1, "gradient_clipping": 0.0, "optimizer": {"type": type_name, "params": {"lr": 0.1, **params}}})
    return losses(lambda loss: (engine.backward(loss), engine.step()), engine)


def by_torch(cls, **params):
    model = made()
    optimizer = cls(model.parameters(), lr=0.1, **params)

    def take_step(loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return losses(take_step, model)


@pytest.mark.parametrize("lr_decay", [0.0, 0.5])
def test_adagrads_lr_decay_is_torchs(lr_decay):
    assert by_block("Adagrad", lr_decay=lr_decay) == pytest.approx(by_torch(torch.optim.Adagrad, lr_decay=lr_decay), rel=1e-5)


def test_muon_takes_the_keys_of_its_block():
    """Decay that is not decoupled changes the gradient's direction, and so the steps."""
    decoupled, in_gradient = (by_block("Muon", weight_decay=0.1, adam_w_mode=mode, per_head_muon=False)
                              for mode in (True, False))
    assert decoupled == by_block("Muon", weight_decay=0.1) != in_gradient


def test_adamw_is_adamw_whatever_its_block_says():
    """And Adam is AdamW unless its block says otherwise."""
    decoupled = by_block("AdamW", weight_decay=0.1)
    assert decoupled == by_block("AdamW", weight_decay=0.1, adam_w_mode=False) == by_block("Adam", weight_decay=0.1)
    assert decoupled != by_block("Adam", weight_decay=0.1, adam_w_mode=False)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding, self.conv, self.inside, self.lm_head = (
            nn.Embedding(7, 4), nn.Conv1d(4, 4, 3), nn.Linear(4, 4), nn.Linear(4, 7))


@pytest.mark.parametrize("partitioned", [False, True])
def test_muon_orthogonalizes_what_deepspeed_tags(partitioned):
    """Two dimensions or more, and neither embedding nor head by name; also where zero.Init has left no shapes."""
    with Init(enabled=partitioned):
        model = Tied()
    model.inside.bias.use_muon = True  # the program's own tag stays
    _, optimizer, *_ = tessera.initialize(model=model, config={
        "train_batch_size": 1, "zero_optimization": {"stage": 3},
        "optimizer": {"type": "Muon", "params": {"lr": 1e-2, "adam_lr": 0.0}}})
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {group["use_muon"]: (group["lr"], {names[id(p)] for p in group["params"]}) for group in optimizer.param_groups}
    assert found[True] == (1e-2, {"conv.weight", "inside.weight", "inside.bias"})
    assert found[False] == (0.0, {"token_embedding.weight", "conv.bias", "lm_head.weight", "lm_head.bias"})


def test_orthogonal_head_by_head_is_refused():
    with pytest.raises(_core.ConfigError, match="'optimizer.params.per_head_muon' is true: not supported yet"):
        by_block("Muon", per_head_muon=True)


@pytest.mark.parametrize("type_name", ["Adam", "AdamW"])
@pytest.mark.parametrize("torch_adam", [False, True])
def test_amsgrad_is_torchs(type_name, torch_adam):
    """The second moment falls between these steps, so that it counts."""
    cls, same = getattr(torch.optim, type_name), {"betas": (0.9, 0.5), "weight_decay": 0.01}
    expected = pytest.approx(by_torch(cls, amsgrad=True, **same), rel=1e-5)
    assert by_block(type_name, amsgrad=True, torch_adam=torch_adam, adam_w_mode=type_name == "AdamW", **same) == expected
    assert by_torch(cls, **same) != expected


@pytest.mark.parametrize("type_name, more", [("SGD", {"momentum": 0.9}), ("Adagrad", {"lr_decay": 0.5})])
def test_maximize_is_torchs(type_name, more):
    expected = by_torch(getattr(torch.optim, type_name), maximize=True, **more)
    assert by_block(type_name, maximize=True, **more) == pytest.approx(expected, rel=1e-5)
    assert expected[-1] > expected[0]


def test_adafactors_pair_of_epsilons_is_its_own():
    """torch's, and so the one of transformers that `optim="adafactor"` names."""
    expected = by_torch(torch.optim.Adafactor, eps=(1e-6, 2.0))
    assert by_block("Adafactor", eps=(1e-6, 2.0)) == pytest.approx(expected, rel=1e-6)
    assert by_torch(torch.optim.Adafactor) != expected


@pytest.mark.parametrize("cls", [optimizers.DeepSpeedCPUAdam, optimizers.DeepSpeedCPUAdagrad, optimizers.DeepSpeedCPULion])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_an_engine_moments_have_the_dtype_of_the_weights(cls, dtype):
    """As in DeepSpeed's classes."""
    dtypes = {}
    for wide in (True, False):
        weight = torch.nn.Parameter(torch.ones(8, dtype=dtype))
        optimizer = cls([weight], lr=0.1, fp32_optimizer_states=wide)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        dtypes[wide] = {value.dtype for value in optimizer.state[weight].values() if isinstance(value, torch.Tensor)}
        assert (weight < 1).all()
    assert dtypes == {True: {torch.float32}, False: {dtype}}


def by_width(params, impl, lr, **more):
    """As mup's MuAdam: a matrix whose width is twice its base's gets half the rate."""
    params = list(params)
    return impl([{"params": [each for each in params if each.dim() == 2], "lr": lr / 2}, {"params": [each for each in params if each.dim() < 2]}],
                lr=lr, **more)


@pytest.mark.parametrize(("type_name", "impl"), [("MuAdam", torch.optim.Adam), ("MuAdamW", torch.optim.AdamW), ("MuSGD", torch.optim.SGD)])
def test_mup_makes_its_optimizers(type_name, impl, monkeypatch):
    """From their parameters, as its documentation has it; here by a stand-in of that name."""
    monkeypatch.setitem(sys.modules, "mup", types.SimpleNamespace(**{type_name: lambda params, **more: by_width(params, impl, **more)}))
    expected = by_torch(lambda params, **more: by_width(params, impl, **more))
    assert by_block(type_name) == pytest.approx(expected, rel=1e-5)
    assert expected != by_torch(impl)


def test_without_mup_its_optimizers_are_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "mup", None)
    with pytest.raises(_core.ConfigError, match="'optimizer.type' is 'MuAdam'.*package mup.*not installed.*\n.*where:.*\n.*fix: +pip install mup"):
        by_block("MuAdam")
