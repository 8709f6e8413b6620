"""What a program does wrong with an engine, as two ranks: run by test_misuse.py. Prints JSON, {"<function>": what it said}.
"""

import copy
import io
import logging
import os
import pickle
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from named_runs import NamedRuns  # noqa: E402
from small_model import VOCABULARY, WIDTH, adamw, batch, config, made, own, plainly_trained, start, trained  # noqa: E402

run = NamedRuns()


def said(call, *arguments, **keywords):
    """[the class of the exception, its text], or ["nothing", …]"""
    try:
        call(*arguments, **keywords)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def one_step(engine, number=0):
    engine.backward(engine(*own(number)))
    engine.step()


def at_every_stage(change, **more):
    """What a step says once `change` was made to the model after a good step; and that no gradient waits afterwards."""
    found = []
    for stage in range(4):
        engine, *_ = start(config=config(stage, **more))
        one_step(engine)
        change(engine.module)
        found.append(said(one_step, engine))
    return found


@run
def a_module_replaced():
    def change(model):
        model.blocks[1].widen = nn.Linear(WIDTH, 3 * WIDTH)

    return at_every_stage(change)


@run
def a_parameter_replaced():
    def change(model):
        model.scale = nn.Parameter(torch.ones(WIDTH))

    return at_every_stage(change)


@run
def a_resized_embedding():
    """As transformers resizes: a new embedding, tied to the head again."""
    def change(model):
        model.embedding = nn.Embedding(VOCABULARY + 3, WIDTH)
        model.head.weight = model.embedding.weight

    return at_every_stage(change)


@run
def a_parameter_added():
    def change(model):
        model.blocks[0].extra = nn.Parameter(torch.ones(2, 2))

    return at_every_stage(change)


@run
def a_parameter_unfrozen():
    found = []
    for stage in range(4):
        model = made()
        model.scale.requires_grad_(False)
        engine, *_ = start(model, config=config(stage))
        one_step(engine)
        model.scale.requires_grad_(True)
        found.append(said(one_step, engine))
    return found


@run
def what_may_come_and_go():
    """Frozen, empty, and no parameter at all; and a forward that trains nothing may see anything."""
    def change(model):
        model.blocks[0].frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)
        model.blocks[0].empty = nn.Parameter(torch.ones(0, 2))
        model.blocks[0].register_parameter("none", None)
        model.register_buffer("seen", torch.ones(3))

    found = at_every_stage(change)
    engine, *_ = start(config=config(2))
    engine.module.extra = nn.Parameter(torch.ones(2))
    with torch.no_grad():
        found.append(said(engine, *own(0)))
    engine.eval()
    found.append(said(engine, *own(0)))
    return found


@run
def an_optimizer_of_ones_own():
    """Over the engine's parameters, before and after its first step; another one of somebody else's is free."""
    found = {}
    for name in ("AdamW", "NAdam"):
        for stage in range(4):
            model = made()
            given = getattr(torch.optim, name)(model.parameters(), lr=1e-2)
            engine, optimizer, *_ = start(model, optimizer=given, config=config(stage, optimizer=False))
            mine = torch.optim.SGD([p for p in model.parameters() if p.dim()], lr=0.1)
            calls = [said(mine.step), said(given.step)]
            one_step(engine)
            calls += [said(mine.step), said(given.step)]
            found[f"{name}, stage {stage}"] = calls
    other = nn.Linear(3, 3)
    theirs = torch.optim.SGD(other.parameters(), lr=1.0)
    other(torch.ones(1, 3)).sum().backward()
    before = other.bias.detach().clone()
    found["other parameters"] = said(theirs.step)
    found["they changed"] = bool((other.bias != before).all())
    engine.destroy()
    found["engine destroyed"] = said(mine.step)
    return found


@run
def the_engines_own_optimizer():
    """Its step() is the engine's, and knows no closure and no group that came later."""
    found = []
    for stage in (1, 3):
        engine, optimizer, *_ = start(config=config(stage))
        engine.backward(engine(*own(0)))
        found.append([said(optimizer.step), engine.global_steps, said(optimizer.step, lambda: None)])
    groups = []
    for stage in range(4):
        model = made()
        given = adamw(model)
        engine, *_ = start(model, optimizer=given, config=config(stage, optimizer=False))
        one_step(engine)
        given.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        groups.append(said(one_step, engine))
    lost = start(config=config(2))[1]
    return {"steps": found, "groups": groups, "engine gone": said(lost.step)}


@run
def forward_past_the_engine():
    """model(x) in place of engine(x), with accumulation, by either backward: the same numbers."""
    model = made()
    expected = plainly_trained(model, adamw(model), steps=2, accumulation=2)
    results = []
    for stage in range(4):
        for by_hand in (False, True):
            model = made()
            engine, *_ = start(model, config=config(stage, 2))
            losses, norms = [], []
            for number in range(4):
                loss = model(*own(number))
                loss.backward() if by_hand else engine.backward(loss)
                engine.step()
                losses.append(float(loss))
                if number % 2:
                    norms.append(float(engine.get_global_grad_norm()))
            results.append((losses, norms))
    return {"expected": expected, "results": results}


@run
def fp16_past_the_engine():
    """loss.backward() without the loss scale."""
    found = []
    for stage in (0, 2, 3):
        model = made()
        start_of = start(model, config=config(stage, fp16={"enabled": True}))
        found.append(said(lambda: model(*own(0)).backward()))
        del start_of
    return found


@run
def copies_of_the_model_have_no_engine():
    """A copy and a pickle of the model compute without it, and their gradients are their own."""
    model = made()
    kept = start(model, config=config(2, 2))[0]
    found = []
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(*own(0)).backward()
        found.append(float(other.scale.grad.norm()))
    plain = made()
    plain(*own(0)).backward()
    return {"found": found, "expected": float(plain.scale.grad.norm()), "stage": kept.stage}


@run
def the_first_of_two_engines_on_one_model():
    found = {}
    for stage in range(4):
        model = made()
        first, optimizer, *_ = start(model, config=config(stage))
        one_step(first)
        loss = first(*own(1))
        second, *_ = start(model, config=config(stage))
        folder = tempfile.mkdtemp()
        found[stage] = {name: said(*call) for name, call in {
            "forward": [first, *own(0)], "backward": [first.backward, loss], "step": [first.step],
            "save": [first.save_checkpoint, folder], "load": [first.load_checkpoint, folder],
            "weights": [first.consolidated_state_dict], "steps": [lambda first=first: first.global_steps],
            "optimizer": [optimizer.step]}.items()}
        found[stage]["destroyed again"] = said(first.destroy)
        found[stage]["second"] = said(one_step, second)
    engine, *_ = start(config=config(2))
    engine.destroy()
    found["destroyed"] = said(engine, *own(0))
    return found


@run
def keywords_of_backward():
    engine, *_ = start(config=config(1))
    loss = engine(*own(0))
    found = [said(engine.backward, loss, allreduce_gradients=False), said(engine.backward, loss, create_graph=True)]
    engine.backward(loss, allreduce_gradients=True, release_loss=False)
    engine.step()
    return [*found, engine.global_steps]


@run
def weights_read_at_stage_3():
    """A weight is read, copied, saved; then what may be asked of it, and its values once they are gathered."""
    engine, *_ = start(config=config(3))
    one_step(engine)
    weight = engine.module.embedding.weight
    found = [said(weight.mean), said(lambda: weight.data.clone()), said(torch.save, weight, os.devnull)]
    warned = io.StringIO()
    handler = logging.StreamHandler(warned)
    logging.getLogger("tessera").addHandler(handler)
    found.append(said(torch.save, engine.module.state_dict(), os.devnull))
    logging.getLogger("tessera").removeHandler(handler)
    found[-1][1] = warned.getvalue()
    may_be_asked = [weight.numel(), list(weight.shape), str(weight.dtype), weight.grad is None, list(weight.detach().shape)]
    with deepspeed.zero.GatheredParameters([weight]):
        finite = bool(torch.isfinite(weight.mean()))
    return [found, may_be_asked, finite]


if __name__ == "__main__":
    deepspeed.init_distributed()
    run.print_results(sys.argv[1:])
