"""Learning-rate schedules over a torch optimizer, with DeepSpeed's classes. Each shows a C++ schedule
(tessera/optim/running_schedule.h), which knows the step and the formula, and writes its values into the optimizer's
parameter groups. An engine saves and loads that very object, as it does the one of `tessera train`.

    schedule = WarmupLR(optimizer, warmup_max_lr=1e-3, warmup_num_steps=100)
    schedule.step()          after each optimizer step

`last_batch_iteration` is -1 before the first step(), then 0, 1, …; it is the whole state. Values that may be lists have
one entry a group. A group's lr that is a tensor stays that tensor.
"""

import logging

import torch

from tessera import _core
from tessera.config_keys import call_with_params, params_of, with_defaults_of

logger = logging.getLogger("DeepSpeed")


def torch_optimizer_of(optimizer):
    """The torch optimizer, also from inside of a wrapper."""
    for candidate in (optimizer, getattr(optimizer, "optimizer", None)):
        if isinstance(candidate, torch.optim.Optimizer):
            return candidate
    raise TypeError(f"a schedule needs a torch.optim.Optimizer, not {type(optimizer).__name__}")


def _number(lr):
    return lr.item() if torch.is_tensor(lr) else lr


class LearningRateSchedule:
    """Base: `given` has the parameters of the C++ schedule `formula`, and may have more; None stands for a default."""

    formula = None

    def __init__(self, optimizer, given):
        self.optimizer = torch_optimizer_of(optimizer)
        self._params = {key: given[key] for key in params_of("scheduler", self.formula) if given.get(key) is not None}
        self._start_lrs = [_number(group["lr"]) for group in self.optimizer.param_groups]
        self._check_lists()
        self.running = _core.RunningSchedule(self.formula, self._params, self._start_lrs)
        self._last_lr = None
        if self.last_batch_iteration == -1:
            self.write()

    def _check_lists(self):
        groups = len(self._start_lrs)
        for name, value in self._params.items():
            if isinstance(value, (list, tuple)) and len(value) != groups:
                raise ValueError(f"{name} has {len(value)} values, but the optimizer has {groups} parameter groups; "
                                 f"give {groups}, or one for all")

    def _terms(self, name):
        """What the formula makes of its parameters, for each group."""
        return [self.running.terms(index)[name] for index in range(len(self._start_lrs))]

    @property
    def last_batch_iteration(self):
        return self.running.n

    @last_batch_iteration.setter
    def last_batch_iteration(self, n):
        self.running.n = n

    def _values(self):
        """(lr, beta1 or None, beta2 or None) of each group now."""
        return [self.running.values(index) for index in range(len(self._start_lrs))]

    def write(self):
        """The values of the next optimizer step, into the parameter groups."""
        values = self._values()
        for group, (lr, beta1, beta2) in zip(self.optimizer.param_groups, values):
            if torch.is_tensor(group["lr"]):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
            if beta1 is not None and "betas" in group:
                group["betas"] = (beta1, beta2 if beta2 is not None else group["betas"][1])
        self._last_lr = [lr for lr, _, _ in values]

    def get_lr(self):
        if self.last_batch_iteration < 0:
            logger.warning(f"{self.formula} was asked for a learning rate before its first step()")
        return [lr for lr, _, _ in self._values()]

    def get_last_lr(self):
        """What the last step() wrote."""
        assert self._last_lr is not None, "need to call step() first"
        return self._last_lr

    def step(self, last_batch_iteration=None):
        """Advances to the next step, or to the given one."""
        self.last_batch_iteration = (self.last_batch_iteration + 1 if last_batch_iteration is None
                                     else last_batch_iteration)
        self.write()

    def state_dict(self):
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, sd):
        self.last_batch_iteration = sd["last_batch_iteration"]


class _Warmup(LearningRateSchedule):
    """The three schedules with a warm-up."""

    def __init__(self, optimizer, given):
        known = params_of("scheduler", self.formula)["warmup_type"]["choices"]
        if given["warmup_type"] not in known:
            logger.warning(f"warmup_type {given['warmup_type']!r} is not known: log is used (there are {' and '.join(known)})")
            given = {**given, "warmup_type": None}
        super().__init__(optimizer, given)
        self.warmup_num_steps, self.warmup_type = self._terms("warmup_num_steps")[0], self._terms("warmup_type")[0]

    def _check_total(self, total_num_steps):
        self.total_num_steps = total_num_steps
        if total_num_steps < self.warmup_num_steps:
            logger.warning(f"total_num_steps {total_num_steps} is less than warmup_num_steps {self.warmup_num_steps}: "
                           "the warm-up never ends")


class WarmupLR(_Warmup):
    """Rises from warmup_min_lr to warmup_max_lr (the groups' own lr if None), then stays constant."""

    formula = "WarmupLR"

    @with_defaults_of("scheduler", "WarmupLR")
    def __init__(self, optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration):
        self._begin(optimizer, locals())

    def _begin(self, optimizer, given):
        _Warmup.__init__(self, optimizer, given)
        self.min_lrs, self.max_lrs = self._terms("min_lr"), self._terms("max_lr")
        self.delta_lrs = self._terms("delta_lr")


class WarmupDecayLR(WarmupLR):
    """WarmupLR, then falls linearly to 0 at total_num_steps."""

    formula = "WarmupDecayLR"

    @with_defaults_of("scheduler", "WarmupDecayLR")
    def __init__(self, optimizer, total_num_steps, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type,
                 last_batch_iteration):
        self._begin(optimizer, locals())
        self._check_total(total_num_steps)


class WarmupCosineLR(_Warmup):
    """Ratios of the groups' own lr: up from warmup_min_ratio to 1, and along a cosine down to cos_min_ratio."""

    formula = "WarmupCosineLR"

    @with_defaults_of("scheduler", "WarmupCosineLR")
    def __init__(self, optimizer, total_num_steps, warmup_min_ratio, warmup_num_steps, cos_min_ratio, warmup_type,
                 last_batch_iteration):
        super().__init__(optimizer, locals())
        self._check_total(total_num_steps)
        self.warmup_min_ratio, self.cos_min_ratio = warmup_min_ratio, cos_min_ratio
        self.org_lrs = self._start_lrs

    def get_lr_ratio(self):
        of_one = _core.RunningSchedule(self.formula, self._params, [1.0])
        of_one.n = self.last_batch_iteration
        return of_one.values(0)[0]


class LRRangeTest(LearningRateSchedule):
    """Rises from lr_range_test_min_lr, to find which rates a model tolerates (Smith 2018)."""

    formula = "LRRangeTest"

    @with_defaults_of("scheduler", "LRRangeTest")
    def __init__(self, optimizer, lr_range_test_min_lr, lr_range_test_step_size, lr_range_test_step_rate,
                 lr_range_test_staircase, last_batch_iteration):
        super().__init__(optimizer, locals())
        self.min_lr, self.staircase = self._terms("min_lr"), lr_range_test_staircase
        self.step_size, self.step_rate = lr_range_test_step_size, lr_range_test_step_rate

    def get_lr(self):
        return [lr for lr, _, _ in self._values()]

    def step(self, batch_iteration=None):
        super().step(batch_iteration)


class OneCycle(LearningRateSchedule):
    """Up and down once between cycle_min_lr and cycle_max_lr, the momentum (beta1) the other way round, and then decay
    (Smith 2018). An optimizer without betas keeps its momentum."""

    formula = "OneCycle"

    @with_defaults_of("scheduler", "OneCycle")
    def __init__(self, optimizer, cycle_min_lr, cycle_max_lr, decay_lr_rate, cycle_first_step_size,
                 cycle_second_step_size, cycle_first_stair_count, cycle_second_stair_count, decay_step_size,
                 cycle_momentum, cycle_min_mom, cycle_max_mom, decay_mom_rate, last_batch_iteration):
        self.cycle_momentum = cycle_momentum and _has_betas(torch_optimizer_of(optimizer))
        super().__init__(optimizer, {**locals(), "cycle_momentum": self.cycle_momentum})
        self.decay_lr_rate, self.decay_mom_rate, self.decay_step_size = decay_lr_rate, decay_mom_rate, decay_step_size
        self.min_lrs, self.max_lrs = self._terms("min_lr"), self._terms("max_lr")
        self.min_moms, self.max_moms = ([tuple(pair) for pair in self._terms(name)] for name in ("min_mom", "max_mom"))
        for name in ("first_step_size", "second_step_size", "total_size", "step_ratio"):
            setattr(self, name, self._terms(name)[0])
        self._last_lr = None  # as DeepSpeed has it: get_last_lr() is for after the first step()

    def get_lr(self):
        return [lr for lr, _, _ in self._values()]

    def get_mom(self):
        """(beta1, beta2) of each group, or None if the momentum is not cycled."""
        if not self.cycle_momentum:
            return None
        if self.last_batch_iteration < 0:
            return self.max_moms
        return [(beta1, beta2) for _, beta1, beta2 in self._values()]

    def step(self, batch_iteration=None):
        super().step(batch_iteration)


def _has_betas(optimizer):
    if "betas" in optimizer.defaults:
        return True
    logger.warning(f"cycle_momentum is off: {type(optimizer).__name__} has no betas")
    return False


SCHEDULES = {schedule.__name__: schedule for schedule in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR,
                                                          WarmupCosineLR)}


def from_config(block, optimizer):
    """The schedule that a ds_config's block `scheduler` names: one of ours, or a class of torch.optim.lr_scheduler."""
    name, params = block["type"], block.get("params") or {}
    made = SCHEDULES.get(name) or getattr(torch.optim.lr_scheduler, name, None) or _without_class(name)
    assert made is not None, (f"scheduler.type {name!r} is neither one of {', '.join(_core.schedule_names())} nor a torch.optim.lr_scheduler class")
    return call_with_params(made, "scheduler", name, optimizer, **params)


def _without_class(name):
    """A schedule that `tessera train` has and DeepSpeed has not."""
    if name not in _core.schedule_names():
        return None

    class Schedule(LearningRateSchedule):
        formula = name

        def __init__(self, optimizer, **params):
            super().__init__(optimizer, params)

    return Schedule


def running(schedule):
    """The C++ schedule of one of ours, which an engine then saves and loads; None where Python keeps the state."""
    keeps = (LearningRateSchedule.state_dict, LearningRateSchedule.load_state_dict)
    is_ours = isinstance(schedule, LearningRateSchedule)
    return schedule.running if is_ours and (type(schedule).state_dict, type(schedule).load_state_dict) == keeps else None
