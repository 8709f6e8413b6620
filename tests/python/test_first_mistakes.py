"""What a program's first lines get wrong: each is one sentence with a fix. One process; what needs ranks is in test_misuse.py."""

import copy
import logging

import deepspeed
import pytest
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from deepspeed.utils import safe_get_full_grad, safe_get_full_optimizer_state, safe_set_full_fp32_param
from tessera import _core


@pytest.fixture(scope="module", autouse=True)
def group():
    """The group of one that initialize() makes is gone for the tests of other files."""
    was_there = dist.is_initialized()
    yield
    if dist.is_initialized() and not was_there:
        dist.destroy_process_group()


OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-3}}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 3)

    def forward(self, x):
        y = self.line(x)
        return {"logits": y, "loss": y.square().mean()}


def started(config):
    return deepspeed.initialize(model=Model(), config={"train_batch_size": 2, "optimizer": OPTIMIZER, **copy.deepcopy(config)})[0]


def start(**config):
    return started(config)


def step(engine):
    engine.backward(engine(torch.ones(2, 4))["loss"])
    engine.step()


def of(block, **params):
    """The block with more params."""
    return {**block, "params": {**block["params"], **params}}


WARM_UP = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 2, "warmup_type": "linear"}}


def test_numbers_in_quotes_are_numbers_everywhere(capfd):
    quoted = {"warmup_max_lr": "1e-3", "warmup_num_steps": "2"}
    engine = started({"optimizer": of(OPTIMIZER, lr="1e-3"), "scheduler": of(WARM_UP, **quoted)})
    rates = []
    for _ in range(3):
        step(engine)
        rates += engine.get_lr()
    assert rates == pytest.approx([0, 0.0005, 0.001])  # DeepSpeed's linear ramp of two steps, from 0
    said = capfd.readouterr()
    assert "'optimizer.params.lr' is \"1e-3\", read as 0.001" in said.out + said.err


def test_auto_is_what_the_table_of_it_says(capfd):
    """tessera/config/auto_values.h: a rate of 5e-5, and a warm-up to the optimizer's own rate."""
    assert started({"optimizer": of(OPTIMIZER, lr="auto", betas="auto")}).get_lr() == [5e-5]
    auto = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}
    engine = started({"scheduler": of(WARM_UP, **auto)})
    for _ in range(3):
        step(engine)
    assert engine.get_lr() == [1e-3]
    said = capfd.readouterr()
    assert "'scheduler.params.warmup_max_lr' is \"auto\", read as 0.001" in said.out + said.err


@pytest.mark.parametrize("config, what, fix", [
    ({"optimizer": of(OPTIMIZER, learning_rate=1e-3)}, "'optimizer.params.learning_rate' is no parameter of AdamW", "use one of lr, betas"),
    ({"optimizer": {"type": "RMSprop", "params": {"rate": 1}}}, "'optimizer.params.rate' is no parameter of RMSprop", "the documentation of RMSprop"),
    ({"scheduler": of(WARM_UP, warmup_steps=2)}, "'scheduler.params.warmup_steps' is no parameter of WarmupLR", "warmup_num_steps"),
    ({"scheduler": {"type": "WarmupDecayLR", "params": {}}}, "'scheduler.params' of WarmupDecayLR lacks 'total_num_steps'", "add it"),
    ({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}}, "'scheduler.params.total_num_steps' is \"auto\"", "write a value"),
    ({"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}}, "'zero_optimization.offload_optimizer' is \"cpu\"", '{"device": "cpu"}'),
], ids=str)
def test_the_key_is_named(config, what, fix):
    with pytest.raises(ValueError) as error:
        started(config)
    assert what in str(error.value) and fix in str(error.value).partition("fix:")[2]


def test_what_is_no_loss_is_described_in_a_few_words():
    engine = start()
    for loss, named in ((engine(torch.ones(2, 4)), "dict with the keys logits, loss"), (1.5, "float")):
        with pytest.raises(TypeError, match=f"backward.. takes the loss, a tensor of one element, and got {named}") as error:
            engine.backward(loss)
        assert len(str(error.value)) < 300


def test_an_optimizer_that_runs_the_model_itself_is_refused():
    with pytest.raises(ValueError, match="LBFGS runs the model inside of its step"):
        model = Model()
        deepspeed.initialize(model=model, optimizer=torch.optim.LBFGS(model.parameters()), config={"train_batch_size": 2})


def test_states_and_shapes_that_a_parameter_has_not_are_named():
    engine = start(zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0})
    step(engine)
    weight = engine.module.line.weight
    with pytest.raises(ValueError, match="the optimizer keeps no state 'exp_average'\n.*it has exp_avg, exp_avg_sq"):
        safe_get_full_optimizer_state(weight, "exp_average")
    with pytest.raises(ValueError, match=r"a value of the shape \(3,\) is no value of a parameter of the shape \(3, 4\)"):
        safe_set_full_fp32_param(weight, torch.ones(3))


@pytest.mark.parametrize("stage", range(4))
def test_full_gradients_are_in_fp32(stage):
    """As stages 1 to 3 of DeepSpeed give them."""
    engine = start(bf16={"enabled": True}, zero_optimization={"stage": stage})
    engine.backward(engine(torch.ones(2, 4, dtype=torch.bfloat16))["loss"])
    assert safe_get_full_grad(engine.module.line.weight).dtype == torch.float32


def test_a_path_with_the_tag_in_it_is_noticed(tmp_path, caplog):
    engine = start()
    step(engine)
    engine.save_checkpoint(str(tmp_path), tag="best")
    assert engine.load_checkpoint(str(tmp_path / "best")) == (None, None)
    assert f"load_checkpoint('{tmp_path}', tag='best')" in caplog.text
    with pytest.raises(ValueError, match="was given None instead of a folder"):
        engine.load_checkpoint(None)


def test_a_tag_that_is_not_there_is_said_with_those_that_are(tmp_path):
    engine = start()
    step(engine)
    engine.save_checkpoint(str(tmp_path), tag="best")
    with pytest.raises(_core.DataError, match="there is no checkpoint 'bset'\n.*\n.*such as best"):
        engine.load_checkpoint(str(tmp_path), tag="bset")
    (tmp_path / "latest").write_text("global_step99\n")
    with pytest.raises(_core.DataError, match="there is no checkpoint 'global_step99', which the file 'latest' names\n.*\n.*such as best"):
        engine.load_checkpoint(str(tmp_path))


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path):
    (tmp_path / "file").write_text("")
    engine = start()
    step(engine)
    with pytest.raises(_core.MachineError, match="the folder cannot be created: Not a directory") as error:
        engine.save_checkpoint(str(tmp_path / "file" / "checkpoints"))
    assert str(error.value).count("where:") == str(error.value).count("fix:") == 1
    assert "name another place: a file lies where a folder has to be; earlier checkpoints in this folder are untouched" in str(error.value)


def test_weights_given_to_a_model_whose_weights_are_elsewhere():
    model = Model()
    state = {name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()}
    engine = deepspeed.initialize(model=model, config={"train_batch_size": 2, "optimizer": OPTIMIZER, "zero_optimization": {
        "stage": 3, "stage3_param_persistence_threshold": 0}})[0]
    with pytest.raises(ValueError, match="'line.weight' is partitioned at stage 3.*\n.*\n.*engine.load_module_state_dict"):
        engine.module.load_state_dict(state)
    engine.load_module_state_dict({"module": state})
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        assert (model.line.weight == 0.5).all()


def test_a_model_of_which_nothing_trains():
    with pytest.raises(ValueError, match="no parameter of the model can be trained: none has requires_grad"):
        deepspeed.initialize(model=Model().requires_grad_(False), config={"train_batch_size": 2, "optimizer": OPTIMIZER})


def test_offloaded_parameters_below_stage_3_are_said(capfd):
    start(zero_optimization={"stage": 2, "offload_param": {"device": "cpu"}})
    said = capfd.readouterr()
    assert "'zero_optimization.offload_param' has no effect at stage 2" in said.out + said.err


def test_what_is_given_twice_is_said(caplog):
    model = Model()
    mine = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(mine, 1)
    _, _, _, used = deepspeed.initialize(model=model, optimizer=mine, lr_scheduler=schedule, config={
        "train_batch_size": 2, "optimizer": OPTIMIZER, "scheduler": WARM_UP})
    assert used is schedule
    assert "'optimizer' is not used, since initialize was given one (SGD)" in caplog.text
    assert "'scheduler' is not used, since initialize was given an lr_scheduler" in caplog.text


@pytest.mark.parametrize("stage", [0, 3])
def test_gradients_that_nobody_uses_are_said_once(stage, caplog):
    """accelerator.backward() steps; loss.backward() by itself does not."""
    engine = start(zero_optimization={"stage": stage})
    for _ in range(40):
        engine(torch.ones(2, 4))["loss"].backward()
    assert caplog.text.count("16 forwards have begun since the first gradients came, and step() was not called") == 1


def test_an_accumulation_by_the_programs_own_boundaries_is_not_taken_for_that(caplog):
    engine = start()
    for number in range(40):
        engine.set_gradient_accumulation_boundary(number == 39)
        step(engine)
    assert "step() was not called" not in caplog.text and engine.global_steps == 1


def pipeline(loss_fn=torch.nn.functional.mse_loss):
    deepspeed.init_distributed()
    layers = PipelineModule([torch.nn.Linear(4, 3)], num_stages=1, loss_fn=loss_fn)
    return deepspeed.initialize(model=layers, config={"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "optimizer": OPTIMIZER})[0]


PAIR = torch.ones(2, 4), torch.ones(2, 3)


@pytest.mark.parametrize("batches, what", [
    ([{"x": PAIR[0], "y": PAIR[1]}], "a pipeline's batch is .inputs, labels., and this is a dict with the keys x, y"),
    ([PAIR[0]], "and this is a Tensor"), ([PAIR[:1]], "and this is a tuple of 1"),
    ([PAIR], "the data iterator has no more batches, and a step needs 2"),
], ids=["dicts", "a tensor", "no labels", "too few"])
def test_a_pipelines_batches_are_pairs(batches, what):
    with pytest.raises(ValueError, match=what):
        pipeline().train_batch(iter(batches))


def test_the_end_of_a_pipelines_batches_is_that_of_an_iterator():
    """As with DeepSpeed, where next() goes through."""
    with pytest.raises(StopIteration):
        pipeline().train_batch(iter([]))


def test_a_pipeline_without_a_loss_function():
    with pytest.raises(ValueError, match="the last stage's loss has 6 elements\n.*\n.*give PipelineModule a loss_fn"):
        pipeline(None).train_batch(iter([PAIR] * 2))


def test_sixteen_bit_weights_that_are_not_saved_are_said(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(deepspeed.utils.logger, "handlers", [caplog.handler])
    monkeypatch.setattr(deepspeed.utils.logger, "level", logging.WARNING)
    engine = start(zero_optimization={"stage": 3})
    assert engine.save_16bit_model(str(tmp_path)) is False
    assert "wrote nothing: stage 3 needs 'zero_optimization.stage3_gather_16bit_weights_on_model_save': true" in caplog.text


def test_a_resumed_run_with_another_accumulation_begins_one(tmp_path):
    first = start(train_batch_size=2, train_micro_batch_size_per_gpu=1, gradient_accumulation_steps=2)
    for _ in range(6):
        step(first)
    first.save_checkpoint(str(tmp_path))
    second = start(train_batch_size=4, train_micro_batch_size_per_gpu=1, gradient_accumulation_steps=4)
    second.load_checkpoint(str(tmp_path))
    ends = []
    for _ in range(4):
        ends.append(second.is_gradient_accumulation_boundary())
        step(second)
    assert ends == [False, False, False, True] and second.global_steps == 4
