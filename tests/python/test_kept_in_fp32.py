"""data_types.keep_in_fp32_modules, as DeepSpeed 0.19.8 has it: buffers alone, by the model's own lists or by names."""

import pytest
import tessera
import torch
from tessera import _core
from tessera.zero import Init
from torch import nn

# 7 bits of mantissa: 5.003 is 5.0 in bf16, and 5.00 to within 2^-8 in fp16.
VALUE = 5.003


class Router(nn.Module):
    _keep_in_fp32_modules_strict = ["correction_bias"]
    _keep_in_fp32_modules = ["wo", "inner.*scale"]

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.wo = nn.Linear(2, 2)
        for name in ("correction_bias", "other", "wo_table"):
            self.register_buffer(name, torch.full((2,), VALUE, dtype=dtype))
        self.register_buffer("counts", torch.arange(2))
        self.inner = nn.Module()
        self.inner.register_buffer("my_scale", torch.full((2,), VALUE, dtype=dtype))

    def forward(self, x):
        return self.wo(x)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.correction_bias_maker = Router(), nn.Linear(2, 2)
        self.register_buffer("correction_bias", torch.ones(2))


def floats_after(model, precision, **data_types):
    """Names of the buffers that are in fp32 once an engine has the model, with buffer_dtype bf16."""
    config = {"train_batch_size": 1, precision: {"enabled": True}, "data_types": {"buffer_dtype": "bf16", **data_types},
              "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    engine, *_ = tessera.initialize(model=model, config=config)
    return {name for name, buffer in engine.module.named_buffers() if buffer.dtype == torch.float32}


@pytest.mark.parametrize("precision, setting, kept", [
    ("bf16", {}, {"correction_bias"}),  # strict names alone
    ("bf16", {"keep_in_fp32_modules": "auto"}, {"correction_bias"}),
    ("fp16", {}, {"correction_bias", "wo_table", "inner.my_scale"}),
    ("bf16", {"keep_in_fp32_modules": []}, set()),
    ("bf16", {"keep_in_fp32_modules": ["oth*r", "scale"]}, {"other", "inner.my_scale"}),
])
def test_buffers_stay_in_fp32_by_the_models_lists_or_by_names(precision, setting, kept):
    model = Router()
    assert floats_after(model, precision, **setting) == kept
    for name in kept:
        assert model.get_buffer(name)[0] == torch.tensor(VALUE)  # not rounded on the way
    assert model.counts.dtype == torch.int64


def test_names_of_a_module_inside_mean_its_own_buffers():
    """Its list does not reach the outer model's buffer of that name."""
    assert floats_after(Outer(), "bf16") == {"first.correction_bias"}


def test_parameters_that_the_lists_mean_train_in_16_bits():
    """As T5's 'wo' does in DeepSpeed."""
    model = Router()
    floats_after(model, "fp16")
    assert model.wo.weight.dtype == torch.float16


def test_a_listed_buffer_that_arrives_in_16_bits_becomes_fp32():
    assert floats_after(Router(torch.bfloat16), "bf16") == {"correction_bias"}


def test_fp32_training_keeps_nothing():
    model = Router()
    assert floats_after(model, "tessera_none") == set()


def test_zero_init_makes_listed_buffers_fp32_before_weights_are_loaded_into_them():
    with Init(config_dict_or_path={"train_batch_size": 1, "bf16": {"enabled": True}}):
        model = Router(torch.bfloat16)
    assert (model.correction_bias.dtype, model.other.dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("value", ["wo", [1], None, True])
def test_any_other_value_is_refused_by_name(value):
    with pytest.raises(_core.ConfigError, match="'data_types.keep_in_fp32_modules' is"):
        floats_after(Router(), "bf16", keep_in_fp32_modules=value)


def test_a_list_of_safe_modules_for_autocast_is_refused_by_name():
    """DeepSpeed sends these modules' gradients in the dtype of autocast; here all travel alike."""
    def start(**autocast):
        tessera.initialize(model=Router(), config={
            "train_batch_size": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "torch_autocast": {"dtype": "bfloat16", **autocast}})

    with pytest.raises(_core.ConfigError, match="'torch_autocast.lower_precision_safe_modules'.*\n.*where:.*\n.*fix:"):
        start(enabled=True, lower_precision_safe_modules=["torch.nn.Linear"])
    start(enabled=True, lower_precision_safe_modules=[])
    start(enabled=True)
    start(enabled=False, lower_precision_safe_modules=["torch.nn.Linear"])
