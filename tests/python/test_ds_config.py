"""DeepSpeedConfig and the checked blocks. Which values are refused, and how, was tried on DeepSpeed 0.19.8."""

import deepspeed
import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
from deepspeed.runtime.config_utils import DeepSpeedConfigModel, get_config_default
from deepspeed.runtime.precision_config import DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from pydantic import Field, ValidationError
from tessera import _core
from tessera.config_keys import rows


# T, M, G given -> all three, at 2 ranks: T = M * G * 2.
@pytest.mark.parametrize("given, resolved", [
    ((32, 8, 2), (32, 8, 2)),
    ((32, 8, None), (32, 8, 2)),
    ((32, None, 4), (32, 4, 4)),
    ((None, 4, 4), (32, 4, 4)),
    ((32, None, None), (32, 16, 1)),
    ((None, 16, None), (32, 16, 1)),
])
def test_batch_sizes_that_are_not_given_are_computed(given, resolved):
    assert _core.resolve_batch_sizes(*given, data_parallel_size=2) == resolved
    assert _core.resolve_batch_sizes(*resolved, data_parallel_size=2) == resolved


@pytest.mark.parametrize("config, message", [
    ({}, "no batch size"),
    ({"gradient_accumulation_steps": 2}, "no batch size"),
    ({"train_batch_size": 0}, "train_batch_size is 0"),
    ({"train_batch_size": 5, "train_micro_batch_size_per_gpu": 2}, r"5 != 2 \* 2 \* 1"),
])
def test_batch_sizes_that_cannot_be(config, message):
    with pytest.raises(AssertionError, match=message):
        DeepSpeedConfig(config)


def test_data_parallel_ranks_come_from_the_mpu():
    class Unit:
        def get_data_parallel_world_size(self):
            return 3

    assert DeepSpeedConfig({"train_micro_batch_size_per_gpu": 2}, mpu=Unit()).train_batch_size == 6


@pytest.mark.parametrize("block, error, message", [
    ({"amp": {"enabled": False}}, DeepSpeedConfigError, "removed the config key 'amp'"),
    ({"zero_optimization": {"mics_shard_size": 2}}, DeepSpeedConfigError, "zero_optimization.mics_shard_size"),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, AssertionError, "both true"),
    ({"communication_data_type": "fp64"}, ValueError, "fp64"),
    ({"zero_optimization": {"stage": 4}}, ValidationError, "stage"),
    ({"zero_optimization": {"typo": 4}}, ValidationError, "typo"),
    ({"comms_logger": {"typo": 4}}, ValidationError, "typo"),
    ({"zero_optimization": {"reduce_bucket_size": 1.5}}, ValidationError, "reduce_bucket_size"),
    ({"torch_autocast": {"dtype": "fp17"}}, ValueError, "fp17"),
    ({"checkpoint": {"tag_validation": "maybe"}}, DeepSpeedConfigError, "MAYBE"),
    ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, AssertionError, "bf16_master_weights_and_grads"),
])
def test_refused(block, error, message):
    with pytest.raises(error, match=message):
        DeepSpeedConfig({"train_batch_size": 1, **block})


def test_a_part_of_the_state_is_offloaded_only_at_stage_3():
    for stage in (1, 2):
        with pytest.raises(ValidationError, match="ratio"):
            DeepSpeedZeroConfig(stage=stage, offload_optimizer={"device": "cpu", "ratio": 0.5})
    assert DeepSpeedZeroConfig(stage=3, offload_optimizer={"device": "cpu", "ratio": 0.5}).offload_optimizer.ratio == 0.5


@pytest.mark.parametrize("block", [
    {"no_such_key": 1},
    {"aio": {"thread_count": 4}},
    {"pipeline": {"anything": 1}},
    {"gradient_clipping": "auto"},
    {"steps_per_print": float("inf")},
    {"zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": "auto"}},
    {"zero_optimization": {"stage": 0, "offload_param": {"device": "none", "nvme_path": None}}},
    {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
    {"scheduler": {"type": "WarmupLR"}},
])
def test_accepted(block):
    DeepSpeedConfig({"train_batch_size": 1, **block})


def test_attributes():
    config = DeepSpeedConfig({
        "train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1}}, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}, "communication_data_type": "FP32",
    })
    assert (config.optimizer_name, config.optimizer_params) == ("adamw", {"lr": 1})
    assert (config.zero_enabled, config.zero_optimization_stage) == (True, 3)
    assert config.zero_config.reduce_bucket_size == 500_000_000
    assert config.zero_config.overlap_comm is True
    assert str(config.communication_data_type) == "torch.float32"
    assert config.gradient_clipping == 1.0
    assert config.bfloat16_config.enabled and not config.float16_config.enabled


def test_auto_means_the_default_and_assignments_are_checked():
    zero = DeepSpeedZeroConfig(stage="auto", stage3_max_live_parameters=7, max_reuse_distance=8)
    assert (zero.stage, zero.max_live_parameters, zero.max_reuse_distance) == (0, 7, 8)
    zero.stage = 2
    with pytest.raises(ValidationError):
        zero.stage = 9


def test_old_zero_keys_fill_the_new_ones():
    zero = DeepSpeedZeroConfig(cpu_offload=True, cpu_offload_param=True, stage3_gather_fp16_weights_on_model_save=True)
    assert zero.offload_optimizer.device == zero.offload_param.device == "cpu"
    assert zero.gather_16bit_weights_on_model_save
    with pytest.raises(AssertionError, match="cpu_offload.*offload_optimizer"):
        DeepSpeedZeroConfig(cpu_offload=True, offload_optimizer={"device": "cpu"})


def test_models_of_clients_can_replace_fields():
    class Block(DeepSpeedConfigModel):
        old: str = Field(None, json_schema_extra={"deprecated": True, "new_param": "inner.new",
                                                  "new_param_fn": lambda value: [value]})
        inner: "Inner" = Field(default_factory=lambda: Inner())

    class Inner(DeepSpeedConfigModel):
        new: list = []

    Block.model_rebuild(_types_namespace={"Inner": Inner})
    assert Block(old="x").inner.new == ["x"]
    assert get_config_default(DeepSpeedZeroConfig, "stage") == 0


@pytest.mark.parametrize("field, value", [("loss_scale", -1), ("loss_scale", True), ("loss_scale", float("inf")),
                                          ("loss_scale_window", 0), ("min_loss_scale", 0), ("min_loss_scale", True)])
def test_loss_scales_that_cannot_be(field, value):
    with pytest.raises(ValidationError, match=field):
        DeepSpeedFP16Config(enabled=True, **{field: value})


def test_dynamic_loss_scale_arguments():
    # 2^16 at the start, and names as the loss scaler takes them.
    assert DeepSpeedFP16Config(hysteresis=3).dynamic_loss_scale_args() == {
        "init_scale": 65536, "scale_window": 1000, "delayed_shift": 3, "consecutive_hysteresis": False, "min_scale": 1}


def test_an_engine_shows_what_its_configuration_means():
    """2^5 at the start; float32 is fp32; and what is not given is as documented."""
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(4, 4), config={
        "train_batch_size": 1, "zero_optimization": {"stage": 1}, "fp16": {"enabled": True, "initial_scale_power": 5},
        "data_types": {"grad_accum_dtype": "float32"}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
    assert engine.dynamic_loss_scale() and engine.initial_dynamic_scale() == engine.loss_scale() == 32
    assert engine.get_data_types() == (torch.float16, torch.float32)
    assert (engine.managed_gradient_accumulation(), engine.memory_breakdown(), engine.dump_state()) == (True, False, False)
    assert engine.optimizer_name() == "adamw" and engine.tput_timer.config.enabled
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(4, 4), config={
        "train_batch_size": 1, "fp16": {"enabled": True, "loss_scale": 8}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
    assert not engine.dynamic_loss_scale() and engine.get_data_types() == (torch.float16, torch.float16)


def test_getters_of_a_key_say_what_it_comes_to():
    """Each names a key that there is; some of them differ from their defaults."""
    from deepspeed.runtime._key_getters import _PATHS

    assert set(_PATHS.values()) <= {row["path"] for row in rows()}
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(4, 4), config={
        "train_batch_size": 1, "optimizer": {"type": "AdamW"}, "flops_profiler": {"module_depth": 2}, "checkpoint": {"tag_validation": "Fail"},
        "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 7, "zero_quantized_weights": True, "round_robin_gradients": True}})
    assert (engine.zero_max_live_parameters(), engine.flops_profiler_module_depth()) == (7, 2)
    assert engine.zero_quantized_weights() and engine.zero_round_robin_gradients() and not engine.random_ltd_enabled()
    assert engine.checkpoint_tag_validation_enabled() and engine.checkpoint_tag_validation_fail()
    assert engine._config.zero_config.max_live_parameters == 7
