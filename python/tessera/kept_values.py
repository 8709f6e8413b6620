"""What a checkpoint keeps of an engine of Python beside C++'s own: the program's client state, the module's buffers, its
schedule's and its optimizer's values, and where a curriculum's sampler is. Of every rank: the state of an optimizer that Tessera does not know."""

import base64
import logging

import torch
from torch import nn

from tessera import _core
from tessera.client_state import decode, decode_old, encode

logger = logging.getLogger("tessera")

_OPTIMIZER = "torch_optimizer"  # among a rank's own tensors: JSON, as bytes; its tensors follow, each as "torch_optimizer/<name>"


def hyperparameters(group):
    """Those that the optimizers of C++ have, too. A pair eps is Adafactor's own."""
    return {key: group[key] for key in ("lr", "betas", "eps", "weight_decay", "momentum", "use_muon")
            if key in group and not (key == "eps" and isinstance(group[key], (tuple, list)))}


def to_save(engine, world, client_state, trust_pickle):
    """(what goes into the manifest, tensors for every rank, tensors of this rank). Collective over `world`."""
    kept = {"buffers": engine.buffers_to_save()}
    if not engine.has_own_schedule() and hasattr(engine.lr_scheduler, "state_dict"):
        kept["lr_scheduler"] = engine.lr_scheduler.state_dict()
    data = engine.data_state()
    if data is not None:
        kept["data_sampler"] = data
    if engine.basic_optimizer is not None:
        kept["groups"] = [hyperparameters(group) for group in engine.basic_optimizer.param_groups]

    def made():
        of_rank = {}
        if engine.torch_step is not None:
            text, tensors = encode(engine.torch_step.state(), "optimizer", trust_pickle)
            of_rank = {_OPTIMIZER: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}
            of_rank.update({f"{_OPTIMIZER}/{name}": tensor for name, tensor in tensors.items()})
        return *as_client_state({"client": client_state, **kept}, trust_pickle), of_rank

    return _together(world, made)


def _together(world, work):
    """What `work` returns; where it failed on any rank, every rank raises that, as the others would wait. Collective."""
    result, failure = None, ""
    try:
        result = work()
    except _core.UsageError as error:
        failure = str(error)
    first = next(filter(None, world.exchange_texts(failure, "what a checkpoint keeps")), None)
    if first:
        raise _core.UsageError(first)
    return result


def as_client_state(kept, trust_pickle=False):
    """(what goes into the manifest, tensors for every rank)."""
    text, shared = encode(kept["client"], "client_state", trust_pickle)
    others, tensors = encode({key: value for key, value in kept.items() if key != "client"}, "engine", trust_pickle)
    return {"program": text, "engine": others}, {**shared, **tensors}


def from_saved(stored, shared, trust_pickle):
    """What to_save() kept: a dict with "client" and what else there was. Other doors' checkpoints have a client state alone."""
    if "python" in stored:
        return decode_old(base64.b64decode(stored["python"]), trust_pickle)
    if "program" not in stored:
        return {"client": stored}
    return {"client": decode(stored["program"], shared, trust_pickle), **decode(stored["engine"], shared, trust_pickle)}


def buffers_of(stored, shared):
    """The module's buffers alone, by name; what the program kept is not looked at."""
    if "python" in stored:
        return decode_old(base64.b64decode(stored["python"])).get("buffers", {})
    return decode(stored["engine"], shared).get("buffers", {}) if "engine" in stored else {}


def put_back(engine, kept, of_rank, optimizer_states, schedule, own_schedule):
    """Into the module, the schedule and the optimizer; the client state is the caller's."""
    for name, value in buffers_of_module(engine.module).items():
        if name in kept.get("buffers", {}):
            value.copy_(kept["buffers"][name])
    if schedule and engine.lr_scheduler is not None and "lr_scheduler" in kept:
        engine.lr_scheduler.load_state_dict(kept["lr_scheduler"])
    if schedule and own_schedule:
        engine.lr_scheduler.write()
    if optimizer_states and engine.basic_optimizer is not None:
        for group, values in zip(engine.basic_optimizer.param_groups, kept.get("groups", [])):
            group.update(hyperparameters(values))
        if engine.torch_step is not None:
            _put_back_optimizer(engine, of_rank)


def _put_back_optimizer(engine, of_rank):
    if _OPTIMIZER not in of_rank:
        logger.warning("the checkpoint was made by another number of ranks, or by DeepSpeed: the state of %s starts over",
                       type(engine.basic_optimizer).__name__)
        return
    saved = of_rank[_OPTIMIZER].numpy().tobytes()
    if saved.startswith(b"{"):
        prefix = f"{_OPTIMIZER}/"
        tensors = {name.removeprefix(prefix): tensor for name, tensor in of_rank.items() if name.startswith(prefix)}
        state = decode(saved.decode(), tensors, engine.trusts_pickle)
    else:
        state = decode_old(saved, engine.trusts_pickle)
    engine.torch_step.load_state(state)


def buffers_of_module(module):
    """Those that its state dict has."""
    return {name: value for name, value in module.state_dict(keep_vars=True).items()
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)}
