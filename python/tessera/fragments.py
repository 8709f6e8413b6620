"""One parameter's training state, read and written outside a step: fp32 weights, optimizer state, gradient.

Full forms: the whole parameter's, the same on every rank, collective where it is sharded. Local forms: this rank's part,
flat, at stage 3. None for a parameter that is not trained. Gradients are the mean over ranks, as they are between the
last backward of an accumulation and its step, with the loss scale still in them.
"""

import torch

from tessera import _core, zero
from tessera.error_report import made


def _state_of_client(engine, key):
    return engine.torch_step is not None and key not in ("weight", "grad")


def _require_state(engine, key):
    if engine.torch_step is not None or key in ("weight", "grad", *engine.core.state_names):
        return
    raise made(ValueError, f"the optimizer keeps no state '{key}'", "", f"it has {', '.join(engine.core.state_names) or 'none'}")


def _require_shape(parameter, value):
    shape = getattr(parameter, "ds_shape", parameter.shape)
    if isinstance(value, torch.Tensor) and value.shape != shape:
        raise made(_core.UsageError, f"a value of the shape {tuple(value.shape)} is no value of a parameter of the shape {tuple(shape)}", "",
                   "pass one of the whole parameter's shape")


def _get_full(parameter, key):
    engine, place = zero.trained_by(parameter)
    if engine is None:
        return None
    _require_state(engine, key)
    if _state_of_client(engine, key):
        return engine.core.assembled(place, engine.torch_step.local_state(engine.name_of(parameter), key))
    return engine.core.full_value(place, key)


def _set_full(parameter, key, value):
    engine, place = zero.trained_by(parameter)
    if engine is None:
        return
    _require_state(engine, key)
    _require_shape(parameter, value)
    if _state_of_client(engine, key):
        engine.torch_step.set_state(engine.name_of(parameter), key, value)
    else:
        engine.core.set_full_value(place, key, value)


def _get_local(parameter, key):
    assert hasattr(parameter, "ds_id"), "the local forms are for parameters partitioned at stage 3"
    engine, place = zero.trained_by(parameter)
    if engine is None:
        return None
    if _state_of_client(engine, key):
        return engine.torch_step.local_state(engine.name_of(parameter), key)
    return engine.core.local_value(place, key)


def local_grad(parameter):
    """At any stage."""
    engine, place = zero.trained_by(parameter)
    return engine.core.local_value(place, "grad") if engine is not None else None


def _set_local(parameter, key, value):
    assert hasattr(parameter, "ds_id"), "the local forms are for parameters partitioned at stage 3"
    engine, place = zero.trained_by(parameter)
    if engine is not None:
        engine.core.set_local_value(place, key, value)


def safe_get_full_fp32_param(param):
    return _get_full(param, "weight")


def safe_set_full_fp32_param(param, value):
    _set_full(param, "weight", value)


def safe_get_full_optimizer_state(param, optim_state_key):
    return _get_full(param, optim_state_key)


def safe_set_full_optimizer_state(param, value, optim_state_key):
    _set_full(param, optim_state_key, value)


def safe_get_full_grad(param):
    """In fp32."""
    grad = param.grad if param.grad is not None else _get_full(param, "grad")
    return grad if grad is None else grad.float()


def safe_set_full_grad(param, value):
    if param.grad is not None:
        param.grad.copy_(value)
    else:
        _set_full(param, "grad", value)


def safe_update_full_grad_vectorized(param_list, update_func):
    """Each gradient becomes update_func(gradient, parameter)."""
    for param in param_list:
        grad = safe_get_full_grad(param)
        if grad is not None:
            safe_set_full_grad(param, update_func(grad, param))


def safe_get_local_fp32_param(param):
    return _get_local(param, "weight")


def safe_set_local_fp32_param(param, value):
    _set_local(param, "weight", value)


def safe_get_local_grad(param):
    return _get_local(param, "grad")


def safe_set_local_grad(param, value):
    _set_local(param, "grad", value)


def safe_get_local_optimizer_state(param, optim_state_key):
    return _get_local(param, optim_state_key)


def safe_set_local_optimizer_state(param, value, optim_state_key):
    _set_local(param, optim_state_key, value)
