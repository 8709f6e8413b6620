"""Programs as DeepSpeed's documentation shows them, as two ranks: run by test_documented.py, which compares what each
function here returns with what plain PyTorch computes in the same processes. Prints JSON, {"<function>": what rank 0 got}.
"""

import gc
import io
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed.runtime.base_optimizer import ZeROOptimizer  # noqa: E402
from deepspeed.utils import set_z3_leaf_modules  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402

from named_runs import NamedRuns  # noqa: E402
from small_model import WIDTH, adamw, batch, config, made, own, plainly_trained, start, trained  # noqa: E402

run = NamedRuns()
STEPS = 3


def stepped(model, optimizer):
    """The norm before clipping."""
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    optimizer.step()
    optimizer.zero_grad()
    return norm


@run
def one_loss_of_two_engines():
    """Its backward is called on the loss itself; `_backward_epilogue` is what programs from before 0.18.3 call."""
    def shared(losses):
        return sum(loss / (number + 1) for number, loss in enumerate(losses))

    models = [made(), made(blocks=2)]
    optimizers = [adamw(model) for model in models]
    expected = ([], [])
    for number in range(STEPS):
        ids, labels = batch(number)
        for rank in range(dist.get_world_size()):
            loss = shared([model(ids[rank], labels[rank]) for model in models])
            (loss / dist.get_world_size()).backward()
            if rank == dist.get_rank():
                expected[0].append(float(loss))
        expected[1].append([stepped(model, optimizer) for model, optimizer in zip(models, optimizers)])
    results = []
    for stage in range(4):
        engines = [start(made(), config=config(stage))[0], start(made(blocks=2), config=config(stage))[0]]
        losses, norms = [], []
        for number in range(STEPS):
            loss = shared([engine(*own(number)) for engine in engines])
            loss.backward()
            for engine in engines:
                engine._backward_epilogue()
            for engine in engines:
                engine.step()
            for engine in engines:
                engine.optimizer.zero_grad()
            losses.append(float(loss))
            norms.append([float(engine.get_global_grad_norm()) for engine in engines])
        results.append((losses, norms))
    return {"expected": expected, "results": results}


class Samples:
    """A schedule in the way of Megatron's, told how many samples each step had."""

    def __init__(self):
        self.told = []

    def step(self, increment):
        self.told.append(increment)


@run
def a_schedule_that_counts_samples():
    schedule = Samples()
    engine, *_ = start(made(), lr_scheduler=schedule, config=config(1))
    trained(engine, steps=2)
    engine.backward(engine(*own(2)))
    engine.step({"increment": 5})
    return {"told": schedule.told, "batch": engine.train_batch_size()}


@run
def state_dicts_of_sharded_weights():
    """As DeepSpeed-Chat saves them on rank 0 alone, and as transformers looks whether tensors share memory."""
    model = made()
    start(model, config=config(3))
    state = model.state_dict()
    kept = io.BytesIO()
    torch.save(state, kept)
    kept.seek(0)
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        whole = {name: list(value.shape) for name, value in model.state_dict().items()}
    return {"elements": {name: value.numel() for name, value in torch.load(kept).items()},
            "of parameters": {name: parameter.numel() for name, parameter in model.named_parameters(remove_duplicate=False)},
            "addresses": [value.untyped_storage().data_ptr() for value in state.values() if not value.numel()],
            "whole": whole, "expected": {name: list(value.shape) for name, value in made().state_dict().items()}}


@run
def weights_kept_from_inside():
    """As DeepSpeed-Chat keeps them to save them: on a CPU without a copy."""
    model = made()
    engine, *_ = start(model, optimizer=adamw(model), config=config(3, optimizer=False))
    parameters = dict(model.named_parameters())
    kept, copies = {}, {}
    for name, parameter in parameters.items():
        with deepspeed.zero.GatheredParameters([parameter]):
            kept[name], copies[name] = parameter.data.cpu(), parameter.detach().clone()
    at_once = [name for name in kept if not torch.equal(kept[name], copies[name])]
    trained(engine, steps=2)
    with deepspeed.zero.GatheredParameters(list(parameters.values())):
        same = [name for name, parameter in parameters.items() if torch.equal(parameter, copies[name])]
    return {"kept": len(kept), "others at once": at_once, "others after training": [name for name in kept if not torch.equal(kept[name], copies[name])],
            "untrained": same}


@run
def parameters_named_in_another_order_on_each_rank():
    """As transformers names them, from a set: made under zero.Init, and of an engine."""
    found = []
    with deepspeed.zero.Init():
        model = made()
    for _ in range(2):
        parameters = list(model.parameters())
        named = parameters[::-1] if dist.get_rank() else parameters
        with deepspeed.zero.GatheredParameters(named, modifier_rank=0):
            for number, parameter in enumerate(parameters):
                parameter.data.fill_(number if dist.get_rank() == 0 else -1)
        with deepspeed.zero.GatheredParameters(named):
            own = [[float(parameter.min()), float(parameter.max())] for parameter in parameters]
        of_all = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, own)
        found += of_all
        start(model, config=config(3))
    return {"found": found, "expected": [[number, number] for number in range(len(parameters))]}


@run
def several_backwards_for_one_step():
    """coalesce_grad_reduction: as many as the program likes, whatever gradient_accumulation_steps says."""
    parts, accumulation = 3, 2
    model = made()
    optimizer = adamw(model)
    expected = ([], [])
    for step in range(STEPS):
        for number in range(parts * step, parts * (step + 1)):
            ids, labels = batch(number)
            for rank in range(dist.get_world_size()):
                loss = model(ids[rank], labels[rank])
                (loss / dist.get_world_size() / accumulation).backward()
                if rank == dist.get_rank():
                    expected[0].append(float(loss))
        expected[1].append(stepped(model, optimizer))
    results, refused = [], []
    for stage in range(4):
        engine, *_ = start(config=config(stage, accumulation=accumulation))
        if stage == 0:
            try:
                with engine.coalesce_grad_reduction():
                    pass
            except NotImplementedError as error:
                refused.append(str(error))
            continue
        losses, norms = [], []
        for step in range(STEPS):
            with engine.coalesce_grad_reduction():
                for number in range(parts * step, parts * (step + 1)):
                    loss = engine(*own(number))
                    engine.set_gradient_accumulation_boundary(number % parts == parts - 1)  # the block decides
                    engine.backward(loss)
                    losses.append(float(loss))
                try:
                    engine.step()
                except AssertionError as error:
                    refused.append(str(error))
            engine.step()
            norms.append(float(engine.get_global_grad_norm()))
        results.append((losses, norms))
    return {"expected": expected, "results": results, "refused": refused}


@run
def a_boundary_set_after_the_last_backward():
    """allreduce_gradients() reduces what the backwards left, where the next step is the boundary's; a second call and one before it do nothing."""
    model = made()
    expected = plainly_trained(model, adamw(model), steps=2, accumulation=2)
    results = []
    for stage in range(4):
        engine, *_ = start(config=config(stage))
        losses, norms = [], []
        for number in range(4):
            engine.set_gradient_accumulation_boundary(False)
            loss = engine(*own(number))
            engine.backward(loss / 2)
            losses.append(float(loss))
            engine.allreduce_gradients()
            if number % 2 == 1:
                engine.set_gradient_accumulation_boundary(True)
                engine.allreduce_gradients()
                engine.allreduce_gradients(bucket_size=10)
                engine.step()
                norms.append(float(engine.get_global_grad_norm()))
        results.append((losses, norms))
    return {"expected": expected, "results": results}


@run
def weights_in_one_file():
    """save_16bit_model at every stage: names, buffers and tied weights of the module's state dict, in bfloat16."""
    def with_buffer():
        model = made()
        model.register_buffer("seen", torch.arange(3.0))
        model.blocks[0].widen.weight.requires_grad = False
        return model

    expected = with_buffer().state_dict()
    found = []
    for stage in range(4):
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        settings = config(stage, bf16={"enabled": True})
        refused = start(with_buffer(), config=settings)[0].save_16bit_model(folder[0], "refused.bin")
        settings["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
        engine, *_ = start(with_buffer(), config=settings)
        saved = [engine.save_16bit_model(f"{folder[0]}/new"), engine.save_16bit_model(folder[0], "weights.safetensors"),
                 engine.save_16bit_model(folder[0], "trained.bin", exclude_frozen_parameters=True)]
        plain, safe = torch.load(f"{folder[0]}/new/pytorch_model.bin"), load_file(f"{folder[0]}/weights.safetensors")
        without = torch.load(f"{folder[0]}/trained.bin")
        found.append({
            "refused": not refused, "saved": saved, "wrote": Path(folder[0], "refused.bin").exists(),
            "names": sorted(plain) == sorted(expected), "dtype": str(plain["scale"].dtype),
            "equal": all(torch.equal(plain[name].float(), value.bfloat16().float()) for name, value in expected.items()),
            "tied once": sorted(set(expected) - set(safe)),
            "safe": all(torch.equal(value, plain[name]) for name, value in safe.items()),
            "frozen": sorted(set(plain) - set(without))})
    return found


@run
def backward_by_hand_of_an_accumulation():
    """loss.backward() and scale(loss).backward() take part in the accumulation as backward(loss) does; and so does
    output.backward(gradient) of a model that returns no loss, in a dict."""
    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = made()

        def forward(self, ids, labels):
            return {"loss": [self.inner(ids, labels)[None]]}

    model = made()
    expected = plainly_trained(model, adamw(model), steps=STEPS, accumulation=3)
    results = []
    for stage in range(4):
        torch.manual_seed(0)
        engine, *_ = start(Logits(), config=config(stage, accumulation=3))
        losses, norms = [], []
        for number in range(3 * STEPS):
            output = engine(*own(number))["loss"][0]
            if number % 3 == 0:
                output.backward(torch.ones(1))
            elif number % 3 == 1:
                engine.scale(output.sum()).backward()
            else:
                engine.backward(output.sum())
            engine.step()
            losses.append(float(output.detach()))
            if number % 3 == 2:
                norms.append(float(engine.get_global_grad_norm()))
        results.append((losses, norms))
    return {"expected": expected, "results": results}


@run
def backward_by_hand_in_fp16():
    """Without scale() it is refused, and the engine goes on; with it the weights are those of backward(loss)."""
    found = []
    for stage in range(4):
        settings = config(stage, fp16={"enabled": True, "initial_scale_power": 8})
        curves, refused = [], []
        for by_hand in (False, True):
            engine, *_ = start(config=settings)
            if by_hand:
                for wrong in (lambda: engine(*own(0)).backward(), lambda: engine.scale(torch.ones(2, requires_grad=True))):
                    try:
                        wrong()
                    except (RuntimeError, AssertionError) as error:
                        refused.append(str(error))
            losses = []
            for number in range(STEPS):
                loss = engine(*own(number))
                engine.scale(loss).backward() if by_hand else engine.backward(loss)
                engine.step()
                losses.append(float(loss))
            curves.append((losses, float(engine.get_global_grad_norm())))
        wrapped = engine.optimizer
        found.append({"same": curves[0] == curves[1], "refused": refused, "needs": wrapped.needs_scaler(),
                      "sharded": isinstance(wrapped, ZeROOptimizer)})
    return found


@run
def tags_that_differ():
    """checkpoint.tag_validation: what becomes of a checkpoint that every rank names otherwise."""
    found = {}
    for mode in ("Ignore", "Warn", "Fail"):
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        engine, *_ = start(config=config(1, checkpoint={"tag_validation": mode}))
        try:
            engine.save_checkpoint(folder[0], tag=f"of-{dist.get_rank()}")
        except ValueError as error:
            found[mode] = str(error)
        else:
            found[mode] = [path.name for path in Path(folder[0]).iterdir() if path.is_dir()]
    return found


@run
def a_second_engine_of_one_model():
    """The second starts with the weights of the first, and is the one that the model's parameters know from then on."""
    model = made()
    plainly_trained(model, adamw(model), steps=2)
    expected = plainly_trained(model, adamw(model), steps=STEPS)
    results, knows = [], []
    for stage in range(4):
        first, *_ = start(made(), config=config(stage))
        trained(first, steps=2)
        second, *_ = start(first.module, config=config(stage))
        del first
        gc.collect()
        results.append(trained(second, steps=STEPS))
        knows.append(deepspeed.utils.safe_get_full_fp32_param(second.module.scale) is not None)
    return {"expected": expected, "results": results, "knows": knows}


class Experts(nn.Module):
    """Every rank runs another one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x, rank):
        return self.layers[rank](x)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.experts = Experts()

    def forward(self, x, rank):
        return self.experts(torch.tanh(self.first(x)), rank).square().mean()


def mixture():
    torch.manual_seed(0)
    return Mixture()


@run
def leaf_modules():
    """Marked by a class that the module's is derived from, by name in the configuration, by suffix there."""
    values = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(5))
    model = mixture()
    optimizer, expected = adamw(model), []
    for _ in range(STEPS):
        losses = [model(values[rank], rank) for rank in range(2)]
        (sum(losses) / 2).backward()
        stepped(model, optimizer)
        expected.append(float(losses[dist.get_rank()]))
    results = []
    for how in ({"classes": "Experts"}, {"names": ["experts"]}, {"name_suffixes": ["perts"]}, None):
        settings, model = config(3), mixture()
        if how is None:
            class Kept(Experts):
                pass

            model.experts.__class__ = Kept
            set_z3_leaf_modules(model, [Experts])
        else:
            settings["zero_optimization"]["leaf_module"] = how
        engine, *_ = start(model, config=settings)
        losses = []
        for _ in range(STEPS):
            loss = engine(values[dist.get_rank()], dist.get_rank())
            engine.backward(loss)
            engine.step()
            losses.append(float(loss))
        results.append(losses)
    return {"expected": expected, "results": results}


@run
def a_wrapper_that_answers_for_the_module_inside():
    """At stage 3, made under zero.Init: what the engine keeps with a module is not mistaken for the wrapper's."""
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.wrapped = module

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("wrapped"), name)

        def forward(self, *values):
            return self.wrapped(*values)

    expected = trained(start(made(), config=config(0))[0], steps=STEPS)
    torch.manual_seed(0)
    with deepspeed.zero.Init():
        model = Wrapper(made())
    return {"expected": expected, "results": [trained(start(model, config=config(3))[0], steps=STEPS)]}


@run
def states_to_the_host():
    """offload_states() where the host is where they are."""
    from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum
    from deepspeed.runtime.zero.offload_states import get_state_devices

    settings = [config(3), config(2)]
    expected = [trained(start(config=each)[0]) for each in settings]
    results, refused = [], 0
    for each in settings:
        engine, *_ = start(config=each)
        before = trained(engine, steps=2)
        engine.offload_states(include=[OffloadStateTypeEnum.optim_states, OffloadStateTypeEnum.hp_params])
        engine.reload_states()
        after = trained(engine, steps=2, first=2)
        results.append([one + other for one, other in zip(before, after)])
        for wrong in ({"device": OffloadDeviceEnum.nvme}, {"include": ["everything"]}):
            try:
                engine.offload_states(**wrong)
            except ValueError:
                refused += 1
    return {"same": [list(each) for each in expected] == results, "refused": refused,
            "devices": [str(device) for device in get_state_devices(engine, OffloadStateTypeEnum.lp_params)]}


if __name__ == "__main__":
    deepspeed.init_distributed()
    run.print_results()
