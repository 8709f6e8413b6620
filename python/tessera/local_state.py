"""This rank's part of the training state, in memory: ZeroOptimizer's state_dict() and load_state_dict().

{name: {"weight": …, a tensor for each of the optimizer's states, "step": …}}, tensors flat, in fp32, on the CPU, of the elements that this
rank updates. It fits an engine of the same model, stage and ranks; checkpoints fit any.
"""

import copy

from tessera import _core, zero
from tessera.error_report import made


def _trained(engine):
    """(name, place) of each parameter that is trained."""
    for parameter in engine.module.parameters():
        owner, place = zero.trained_by(parameter)
        if owner is engine:
            yield engine.name_of(parameter), place


def _fits(engine):
    return {"zero_stage": engine.stage, "ranks": engine._data.size}


def taken(engine):
    core = engine.core
    core.finish_update()
    parameters = {
        name: {"step": core.param_step(place), **{key: core.local_value(place, key).cpu() for key in ("weight", *core.state_names)}}
        for name, place in _trained(engine)}
    own = {} if engine.torch_step is None else {"of_client": copy.deepcopy(engine.torch_step.state())}
    return {**_fits(engine), "parameters": parameters, **own}


def put_back(engine, saved):
    """Collective. Nothing is changed where `saved` does not fit."""
    core = engine.core
    core.finish_update()
    trained = dict(_trained(engine))
    wrong = [f"{key} {saved.get(key)}, and this engine's is {value}" for key, value in _fits(engine).items() if saved.get(key) != value]
    wrong += [f"'{name}' of another size" for name, place in trained.items()
              if name in saved["parameters"] and saved["parameters"][name]["weight"].numel() != core.local_value(place, "weight").numel()]
    wrong += [f"no '{name}'" for name in trained if name not in saved["parameters"]]
    if wrong:
        raise made(_core.UsageError, f"this state is of another run: it has {wrong[0]}", "load_state_dict of the engine's optimizer",
                   "use save_checkpoint and load_checkpoint, which fit any number of ranks and any stage")
    for name, place in trained.items():
        values = saved["parameters"][name]
        for key in ("weight", *core.state_names):
            core.set_local_value(place, key, values[key])
        core.set_param_step(place, values["step"])
    if engine.torch_step is not None:
        engine.torch_step.load_state(copy.deepcopy(saved["of_client"]))
