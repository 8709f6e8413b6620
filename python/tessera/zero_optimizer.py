"""What initialize() returns as the optimizer: a client's own optimizer as the engine runs it."""

import torch

from tessera import _core, local_state
from tessera.error_report import made
from tessera.param_groups import options_of


class ZeroOptimizer:
    """param_groups are the wrapped optimizer's own and stay live. step() and zero_grad() are the engine's."""

    def __init__(self, engine, optimizer):
        self._reference = engine  # a weak one
        self.optimizer = optimizer

    def _engine(self):
        engine = self._reference()
        if engine is None:
            raise made(_core.UsageError, "the engine of this optimizer is gone", type(self).__name__,
                       "keep the engine that initialize returned, and use engine.backward(loss) and engine.step()")
        return engine

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        self.optimizer.param_groups = groups

    @property
    def state(self):
        return self.optimizer.state

    @property
    def defaults(self):
        return self.optimizer.defaults

    @property
    def overflow(self):
        core = self._engine().core
        return core.global_steps > 0 and not core.was_step_applied

    @property
    def loss_scale(self):
        return self._engine().core.loss_scale

    cur_scale = loss_scale

    def needs_scaler(self):
        """Whether loss.backward() by hand needs engine.scale(loss)."""
        return self._engine().needs_scaler

    @property
    def dynamic_loss_scale(self):
        return self._engine().dynamic_loss_scale()

    @property
    def _global_grad_norm(self):
        return self._engine().get_global_grad_norm()

    def _get_norm_groups(self):
        """The norm of this rank's part of each group's gradient."""
        return [self._engine().local_grad_norm(group["params"]) for group in self.param_groups]

    def step(self, closure=None):
        if closure is not None:
            raise made(_core.UsageError, "step() was given a closure, which the engine's step does not call",
                       type(self).__name__, "call engine.backward(loss) before engine.step()")
        self._engine().step()

    def zero_grad(self, set_to_none=True):
        """As the engine's, but at stage 3 also in the middle of an accumulation, as in DeepSpeed."""
        self._engine().drop_gradients(also_under_way=self._engine().stage != 2)

    def backward(self, loss, retain_graph=False):
        self._engine().backward(loss, retain_graph=retain_graph, scale_wrt_gas=False)

    def refresh_fp32_params(self):
        """The master weights become what the module's parameters hold."""
        self._engine().core.refresh_master()

    def state_dict(self):
        """Hyperparameters, the loss scale, and this rank's part of weights and moments, as in DeepSpeed: see local_state. For a run that goes
        on, the engine's checkpoints."""
        groups = [*map(options_of, self.param_groups)]
        return {"param_groups": groups, "loss_scale": self.loss_scale, **local_state.taken(self._engine())}

    def load_state_dict(self, state_dict, *args, load_optimizer_states=True, **kwargs):
        """Collective where it has weights and moments. Without them, or load_optimizer_states, hyperparameters alone."""
        if load_optimizer_states and "parameters" in state_dict:
            local_state.put_back(self._engine(), state_dict)
        for group, values in zip(self.param_groups, state_dict.get("param_groups", [])):
            group.update(options_of(values))

    def __repr__(self):
        return f"ZeroOptimizer({self.optimizer!r})"


def with_live_groups(optimizer, parameters):
    """A client's optimizer, checked: every group has only this model's parameters. Empty groups stay, for schedulers count them."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"the optimizer is a {type(optimizer).__name__}: pass a torch.optim.Optimizer, or a function that takes the parameters and returns one")
    seen = set()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in seen:
                raise AssertionError("a parameter appears twice in the optimizer")
            seen.add(id(parameter))
            if id(parameter) not in parameters:
                raise ValueError("the optimizer has a parameter that is not one of the model's: make it from "
                                 "model.parameters() of the model given to initialize")
    return optimizer
