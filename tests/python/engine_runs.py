"""Plain scripts on the engine, as two ranks: run by test_engine.py, which compares what each function here returns with
what plain PyTorch computes in the same processes. Prints JSON, {"<function>": what rank 0 got}.
"""

import copy
import gc
import json
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from named_runs import NamedRuns  # noqa: E402
from small_model import (VOCABULARY, Model, adamw, batch, config, made, own, plainly_trained, start,  # noqa: E402
                         trained)

run = NamedRuns()


@run
def configuration_as_dict_path_and_arguments():
    """The same run from each."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "ds.json"
    path.write_text("// the blog's\n" + json.dumps(config(1, junk=1, **{"zero_optimization.stage": 1})))
    arguments = type("Arguments", (), {"deepspeed_config": str(path), "local_rank": -1})()
    given = [{"config": config(1)}, {"config": str(path)}, {"args": arguments}, {"config_params": config(1)}]
    model = made()
    expected = plainly_trained(model, adamw(model))
    results = []
    for each in given:
        model = made()
        engine, *_ = start(model, model_parameters=model.parameters(), **each)
        results.append(trained(engine))
    return {"expected": expected, "results": results}


@run
def accumulation_at_every_stage():
    model = made()
    expected = plainly_trained(model, adamw(model), accumulation=3)
    return {"expected": expected,
            "results": [trained(start(config=config(stage, 3))[0], accumulation=3) for stage in range(4)]}


@run
def weights_that_arrive_with_the_next_forward():
    """tessera.lazy_publish: at stages 1 and 2 by hooks that the others do without."""
    model = made()
    expected = plainly_trained(model, adamw(model))
    engines = [start(config=config(stage, tessera={"lazy_publish": True}))[0] for stage in range(4)]
    return {"expected": expected, "results": [trained(engine) for engine in engines],
            "hooks": [engine.hooks is not None for engine in engines]}


@run
def recomputation_at_stage_3():
    model = made()
    expected = plainly_trained(model, adamw(model))
    return {"expected": expected,
            "results": [trained(start(made(recomputes=how), config=config(3))[0]) for how in ("plain", "reentrant")]}


@run
def optimizers_of_the_client():
    """Each on every stage; RMSprop, NAdam and what maximizes by Adam are run by their own step()."""
    makers = {
        "AdamW, two groups": lambda model: torch.optim.AdamW(
            [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.3},
             {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0, "lr": 3e-3}], lr=1e-2),
        "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True),
        "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
        "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-2, momentum=0.5),
        "NAdam": lambda model: torch.optim.NAdam(model.parameters(), lr=1e-2),
        "AdamW, amsgrad": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True),
        "Adam, amsgrad": lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1, amsgrad=True),
        "SGD, maximize": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, maximize=True),
        "Adagrad, maximize": lambda model: torch.optim.Adagrad(model.parameters(), lr=1e-3, maximize=True),
        "Adam, maximize": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, maximize=True),
    }
    results = {}
    for name, make in makers.items():
        model = made()
        expected = plainly_trained(model, make(model))
        ours = []
        for stage in range(4):
            model = made()
            engine, *_ = start(model, optimizer=make(model), config=config(stage, optimizer=False))
            ours.append(trained(engine))
        results[name] = {"expected": expected, "results": ours}
    return results


@run
def optimizers_that_send_a_bit_an_element():
    """DeepSpeed's former classes, and the ds_config's block of the same: both compress from the third step on."""
    from deepspeed.runtime.fp16.onebit import OnebitAdam, OnebitLamb, ZeroOneAdam

    found, plain = {}, config(1, optimizer=False)
    for cls, type_name, when in ((OnebitAdam, "OneBitAdam", "freeze_step"), (OnebitLamb, "OneBitLamb", "freeze_step"),
                                 (ZeroOneAdam, "ZeroOneAdam", "var_freeze_step")):
        named = {"type": type_name, "params": {"lr": 1e-2, "weight_decay": 0.1, when: 2}}
        never = {**named, "params": {**named["params"], when: 100}}
        model = made()
        by_class = cls(model.parameters(), None, 1e-2, weight_decay=0.1, comm_backend_name="nccl", **{when: 2})
        engines = [start(config={**plain, "optimizer": named}), start(model, optimizer=by_class, config=plain),
                   start(config={**plain, "optimizer": never})]
        found[type_name] = [trained(engine, steps=6) for engine, *_ in engines]
    try:
        OnebitAdam(made().parameters()).step()
    except Exception as error:
        found["alone"] = [type(error).__name__, str(error)]
    return found


@run
def optimizer_and_scheduler_as_functions():
    def half(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** step)

    model = made()
    optimizer = adamw(model)
    expected = plainly_trained(model, optimizer, scheduler=half(optimizer))
    engine, _, _, scheduler = start(
        config=config(2, optimizer=False), lr_scheduler=half,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1))
    result = trained(engine)
    return {"expected": expected, "results": [result], "lr": [engine.get_lr()[0], scheduler.get_last_lr()[0]]}


@run
def an_empty_group():
    """As the Trainer makes one, of what does not decay, for LoRA; a scheduler counts it."""
    def both(model):
        optimizer = torch.optim.AdamW([{"params": [*model.parameters()], "weight_decay": 0.1}, {"params": [], "weight_decay": 0.0}], lr=1e-2)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.5 ** step, lambda step: 0.7 ** step])

    model = made()
    optimizer, scheduler = both(model)
    expected = plainly_trained(model, optimizer, scheduler=scheduler)
    results, groups = [], []
    for stage in range(4):
        model = made()
        optimizer, scheduler = both(model)
        engine, wrapped, *_ = start(model, optimizer=optimizer, lr_scheduler=scheduler, config=config(stage, optimizer=False))
        results.append(trained(engine))
        groups.append([len(wrapped.param_groups), len(engine.get_lr())])
    return {"expected": expected, "results": results, "groups": groups}


@run
def live_groups():
    model = made()
    optimizer = adamw(model)
    expected = plainly_trained(model, optimizer, steps=2)
    optimizer.param_groups[0]["lr"] = 0.5
    engine, optimizer, *_ = start(config=config(3))
    result = trained(engine, steps=2)
    optimizer.param_groups[0].update(lr=0.0, weight_decay=0.0)
    before = engine.consolidated_state_dict(keeps_on=None)
    trained(engine, steps=1)
    after = engine.consolidated_state_dict(keeps_on=None)
    return {"expected": expected, "results": [result],
            "unchanged": all(torch.equal(before[name], after[name]) for name in before)}


@run
def boundaries_set_by_the_client():
    """As Accelerate drives an engine: loss divided outside, step() at the boundaries alone."""
    model = made()
    expected = plainly_trained(model, adamw(model), steps=2, accumulation=2)
    results = []
    for stage in range(4):
        engine, *_ = start(config=config(stage))
        losses, norms = [], []
        for number in range(4):
            engine.set_gradient_accumulation_boundary(is_boundary=number % 2 == 1)
            loss = engine(*own(number))
            engine.backward(loss / 2, scale_wrt_gas=False)
            losses.append(float(loss))
            if number % 2 == 1:
                engine.step()
                norms.append(float(engine.get_global_grad_norm()))
        results.append((losses, norms))
    return {"expected": expected, "results": results}


@run
def no_sync():
    """DeepSpeed's issue #6793, Accelerate's #3481: there an assertion fails at stages 2 and 3."""
    model = made()
    expected = plainly_trained(model, adamw(model), steps=2, accumulation=2)
    results = []
    for stage in range(4):
        engine, *_ = start(config=config(stage))
        losses, norms = [], []
        for number in range(0, 4, 2):
            with engine.no_sync():
                loss = engine(*own(number))
                engine.backward(loss / 2)
            losses.append(float(loss))
            loss = engine(*own(number + 1))
            engine.backward(loss / 2)
            engine.step()
            losses.append(float(loss))
            norms.append(float(engine.get_global_grad_norm()))
        results.append((losses, norms))
    return {"expected": expected, "results": results}


@run
def backward_of_the_loss_itself():
    model = made()
    expected = plainly_trained(model, adamw(model))
    results = []
    for stage in range(4):
        engine, *_ = start(config=config(stage))
        losses, norms = [], []
        for number in range(4):
            loss = engine(*own(number))
            engine.scale(loss).backward()
            engine.step()
            losses.append(float(loss))
            norms.append(float(engine.get_global_grad_norm()))
        results.append((losses, norms))
    return {"expected": expected, "results": results}


@run
def parameters_read_by_other_modules():
    """The model's forward reads a weight of a module that it does not call."""

    class Reader(Model):
        def forward(self, ids, labels):
            return super().forward(ids, labels) + (self.blocks[1].widen.weight ** 2).sum() * 1e-3

    def reader():
        torch.manual_seed(0)
        return Reader()

    model = reader()
    expected = plainly_trained(model, adamw(model))
    found = trained(start(reader(), config=config(3))[0])
    model = reader()
    deepspeed.zero.register_external_parameter(model, model.blocks[1].widen.weight)
    return {"expected": expected, "results": [found, trained(start(model, config=config(3))[0])]}


@run
def frozen_parameters():
    def frozen():
        model = made()
        for parameter in model.blocks[0].parameters():
            parameter.requires_grad = False
        model.embedding.weight.requires_grad = False
        return model

    model = frozen()
    expected = plainly_trained(model, torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2,
                                                        weight_decay=0.1))
    results = []
    for stage in range(4):
        model = frozen()
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        results.append(trained(start(model, model_parameters=trainable, config=config(stage))[0]))
    return {"expected": expected, "results": results}


@run
def unused_parameters():
    """ignore_unused_parameters at every stage: losses, or what the step said."""
    model = made()
    found = {"expected": plainly_trained(model, adamw(model))[0]}
    for ignored in (True, False):
        for stage in range(4):
            model = made()
            model.spare = nn.Linear(3, 3)
            wanted = config(stage)
            wanted["zero_optimization"]["ignore_unused_parameters"] = ignored
            try:
                found[f"{ignored}, stage {stage}"] = trained(start(model, config=wanted)[0])[0]
            except AssertionError as error:
                found[f"{ignored}, stage {stage}"] = error.args[0]
    return found


@run
def made_under_zero_init():
    model = made()
    expected = plainly_trained(model, adamw(model))
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        torch.manual_seed(dist.get_rank())  # the values of rank 0 count
        model = Model()
    sizes = {parameter.numel() for parameter in model.parameters()}
    shapes = {name: list(parameter.ds_shape) for name, parameter in model.named_parameters()}
    return {"expected": expected, "results": [trained(start(model, config=config(3))[0])], "sizes": sorted(sizes),
            "shapes": shapes, "true_shapes": {name: list(each.shape) for name, each in made().named_parameters()}}


@run
def gathered_parameters():
    engine, *_ = start(config=config(3))
    weight = engine.module.blocks[0].widen.weight
    seen = {"outside": weight.numel(), "status": weight.ds_status.name}
    with deepspeed.zero.GatheredParameters(weight):
        seen["inside"] = list(weight.shape)
        seen["equal"] = torch.equal(weight, made().blocks[0].widen.weight)
        weight.data.fill_(7.0)
    with deepspeed.zero.GatheredParameters([weight, torch.ones(2)]):
        seen["kept without modifier"] = bool((weight == 7).any())
    with deepspeed.zero.GatheredParameters(engine.module.parameters(), modifier_rank=0):
        if dist.get_rank() == 0:
            weight.data.fill_(5.0)
    with deepspeed.zero.GatheredParameters(iter([weight])):
        with deepspeed.zero.GatheredParameters(engine.module.parameters()):
            pass
        seen["kept with modifier"] = bool((weight == 5).all())
    seen["afterwards"] = weight.numel()
    seen["master"] = float(deepspeed.utils.safe_get_full_fp32_param(weight).mean())
    return seen


@run
def tensor_fragments():
    """Weights, gradient and moments of the first step, against Adam's formula on plain PyTorch's gradient."""
    differences = {}
    for stage in (1, 2, 3):
        model = made()
        expected = {}
        ids, labels = batch(0)
        for rank in range(dist.get_world_size()):
            (model(ids[rank], labels[rank]) / dist.get_world_size()).backward()
        for name, parameter in model.named_parameters():
            expected[name] = parameter.grad.clone()
        engine, *_ = start(config=config(stage, gradient_clipping=0.0))
        engine.backward(engine(*own(0)))
        off = []
        for name, parameter in engine.module.named_parameters():
            off.append(deepspeed.utils.safe_get_full_grad(parameter) - expected[name])
        engine.step()
        for name, parameter in engine.module.named_parameters():
            moment = deepspeed.utils.safe_get_full_optimizer_state(parameter, "exp_avg")
            off.append(moment - 0.1 * expected[name])
            value = torch.full(moment.shape, 0.25)
            deepspeed.utils.safe_set_full_optimizer_state(parameter, value, "exp_avg_sq")
            deepspeed.utils.safe_set_full_fp32_param(parameter, value * 2)
        for name, parameter in engine.module.named_parameters():
            off.append(deepspeed.utils.safe_get_full_optimizer_state(parameter, "exp_avg_sq") - 0.25)
            with deepspeed.zero.GatheredParameters(parameter):
                off.append(parameter.detach() - 0.5)
        differences[stage] = float(torch.cat([each.flatten() for each in off]).abs().max())
    return differences


@run
def checkpoints_of_a_client_optimizer():
    """Weights, an own optimizer's state, a scheduler and anything else, at every stage."""
    results = []
    for stage in range(4):
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)

        def begun():
            model = made()
            optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
            return start(model, optimizer=optimizer, lr_scheduler=scheduler, config=config(stage, optimizer=False))[0]

        engine = begun()
        trained(engine, steps=2)
        engine.save_checkpoint(folder[0], client_state={"epoch": 3, "any": torch.arange(3), "set": {1, 2}})
        expected = trained(engine, steps=2, first=2)
        engine = begun()
        path, client = engine.load_checkpoint(folder[0])
        results.append({"expected": expected, "results": [trained(engine, steps=2, first=2)], "lr": engine.get_lr()[0],
                        "tag": Path(path).name, "epoch": client["epoch"], "any": client["any"].tolist(),
                        "set": sorted(client["set"])})
    empty = begun().load_checkpoint(tempfile.mkdtemp())
    return {"stages": results, "empty": list(empty)}


@run
def errors_leave_the_engine_usable():
    """In the forward, the backward and a hook, at every stage; the run afterwards is as if nothing had been."""

    class Stumbles(Model):
        where = None

        def forward(self, ids, labels):
            if self.where == "forward":
                self.blocks[0](self.embedding(ids))
                raise ZeroDivisionError("in forward")
            loss = super().forward(ids, labels)
            if self.where == "backward":
                loss.register_hook(_raise)
            return loss

    def _raise(grad):
        raise ZeroDivisionError("in backward")

    model = made()
    expected = plainly_trained(model, adamw(model))
    results, seen = [], []
    for stage in range(4):
        torch.manual_seed(0)
        engine, *_ = start(Stumbles(), config=config(stage))
        for where in ("forward", "backward", "hook"):
            engine.module.where = where
            handle = None
            if where == "hook":
                handle = engine.module.blocks[1].register_forward_hook(lambda *_: _raise(None))
            try:
                engine.backward(engine(*own(9)))
            except ZeroDivisionError as error:
                seen.append(str(error))
            if handle is not None:
                handle.remove()
        engine.module.where = None
        results.append(trained(engine))
    return {"expected": expected, "results": results, "seen": seen}


@run
def two_engines():
    model = made()
    expected = plainly_trained(model, adamw(model))
    engines = [start(config=config(stage))[0] for stage in (2, 3)]
    curves = [([], []), ([], [])]
    for number in range(4):
        losses = [engine(*own(number)) for engine in engines]
        for engine, loss, (all_losses, norms) in zip(engines, losses, curves):
            engine.backward(loss)
            engine.step()
            all_losses.append(float(loss))
            norms.append(float(engine.get_global_grad_norm()))
    return {"expected": expected, "results": curves}


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@run
def without_an_optimizer():
    """An engine to look at the model with: stage 3, no optimizer anywhere."""
    model = made()
    expected = [float(model(*own(number))) for number in range(2)]
    engine, optimizer, *_ = start(config=config(3, optimizer=False))
    engine.eval()
    with torch.no_grad():
        result = [float(engine(*own(number))) for number in range(2)]
    return {"expected": expected, "result": result, "optimizer": optimizer,
            "sizes": sorted({parameter.numel() for parameter in engine.module.parameters()})}


@run
def full_weights():
    """A checkpoint's weights without an engine, tied ones and buffers included."""
    model = made()
    model.register_buffer("seen", torch.arange(3.0) + dist.get_rank())
    engine, *_ = start(model, config=config(3))
    trained(engine, steps=2)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    engine.save_checkpoint(folder[0])
    expected = engine.consolidated_state_dict(keeps_on=None)
    from deepspeed.utils import zero_to_fp32

    found = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder[0])
    files = {}
    if dist.get_rank() == 0:
        for safe in (False, True):
            for most in ("5GB", "4KB"):
                output = Path(folder[0]) / f"{safe}-{most}"
                zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(folder[0], output, most, safe)
                files[output.name] = sorted(path.name for path in output.iterdir())
        torch.testing.assert_close(torch.load(Path(folder[0]) / "False-5GB" / "pytorch_model.bin"), expected, rtol=0, atol=0)
    return {"same_names": sorted(found) == sorted(expected), "files": files,
            "equal": all(torch.equal(found[name], expected[name]) for name in expected if name != "seen"),
            "script": (Path(folder[0]) / "zero_to_fp32.py").exists()}


@run
def sparse_gradients():
    def sparse():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(VOCABULARY, 4, sparse=True), nn.Linear(4, 2))

    ids = torch.tensor([[1, 2, 2, 5]])
    model = sparse()
    for _ in range(dist.get_world_size()):
        (model(ids).square().sum() / dist.get_world_size()).backward()
    model[0].weight.grad = model[0].weight.grad.to_dense()
    expected = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    norms = []
    for stage in range(4):
        engine, *_ = start(sparse(), config=config(stage))
        engine.backward(engine(ids).square().sum())
        engine.step()
        norms.append(float(engine.get_global_grad_norm()))
    return {"expected": expected, "norms": norms}


@run
def units_of_each_stage():
    return [[name for name, *_ in start(config=config(stage))[0].core.units()] for stage in range(4)]


@run
def twenty_rounds():
    """An engine made and deleted, on one model and on new ones: how many bytes the process grows from eight rounds to the
    next eight. The smallest size of each eight: what malloc gives back to the system, and when, differs by 13 MB a round.
    """
    grown = {}
    for stage in (0, 3):
        kept = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))  # 4 MB of weights, 16 of training state
        for name in ("same model", "new model"):
            sizes = []
            for _ in range(20):
                model = kept if name == "same model" else copy.deepcopy(made())
                if name == "new model":
                    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
                engine, *_ = start(model, config=config(stage))
                engine.backward(engine(torch.ones(2, 512)).sum())
                engine.step()
                del engine, model, _
                gc.collect()
                sizes.append(_resident())
            grown[f"stage {stage}, {name}"] = min(sizes[12:]) - min(sizes[4:12])
    return grown


@run
def generation():
    """transformers' generate() on the unwrapped model: the same tokens at stage 3 as plainly, before and after steps."""
    from transformers import GPT2Config, GPT2LMHeadModel

    def small():
        torch.manual_seed(0)
        return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, bos_token_id=1,
                                          eos_token_id=None, pad_token_id=0))

    prompt = torch.arange(2, 8)[None]
    plain = small().eval().generate(prompt, max_new_tokens=6, do_sample=False).tolist()
    engine, *_ = start(small(), config=config(3))
    engine.eval()
    ours = engine.module.generate(prompt, max_new_tokens=6, do_sample=False, synced_gpus=True).tolist()
    return {"plain": plain, "ours": ours}


@run
def threads_go_on():
    """Python counts in another thread while backward and step run: how often, and how long they took in all."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))

        def forward(self, x):
            return self.layers(x).square().mean()

    engine, *_ = start(Wide(), config=config(2))
    x = torch.randn(256, 1024)
    stamps, ends = [], threading.Event()

    def count():
        while not ends.is_set():
            stamps.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    inside = []
    for _ in range(4):
        loss = engine(x)
        begun = time.monotonic()
        engine.backward(loss)
        engine.step()
        inside.append((begun, time.monotonic()))
    ends.set()
    thread.join()
    counted = sum(begun < stamp < ended for stamp in stamps for begun, ended in inside)
    return {"counted": counted, "milliseconds": 1000 * sum(ended - begun for begun, ended in inside)}


if __name__ == "__main__":
    deepspeed.init_distributed()
    run.print_results(sys.argv[1:])
