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

logger = logging.getLogger("DeepSpeed")

WARMUP_TYPES = ("log", "linear")
ONE_CYCLE_BETA2 = 0.99


def torch_optimizer_of(optimizer):
    """The torch optimizer, also from inside of a wrapper."""
    for candidate in (optimizer, getattr(optimizer, "optimizer", None)):
        if isinstance(candidate, torch.optim.Optimizer):
            return candidate
    raise TypeError(f"a schedule needs a torch.optim.Optimizer, not {type(optimizer).__name__}")


def per_group(optimizer, value, name):
    """A list with one value a group."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * groups
    if len(value) != groups:
        raise ValueError(f"{name} has {len(value)} values, but the optimizer has {groups} parameter groups; "
                         f"give {groups}, or one for all")
    return list(value)


def _number(lr):
    return lr.item() if torch.is_tensor(lr) else lr


class LearningRateSchedule:
    """Base: `params` go to the C++ schedule `formula`; None stands for its default."""

    formula = None

    def __init__(self, optimizer, params, last_batch_iteration):
        self.optimizer = torch_optimizer_of(optimizer)
        self._params = {key: value for key, value in params.items() if value is not None}
        self._start_lrs = [_number(group["lr"]) for group in self.optimizer.param_groups]
        self.running = self._running_from(self._start_lrs, last_batch_iteration)
        self._last_lr = None
        if last_batch_iteration == -1:
            self.write()

    def _running_from(self, rates, last_batch_iteration):
        return _core.RunningSchedule(self.formula, self._params, rates, last_batch_iteration)

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
    """What the three schedules with a warm-up check."""

    def _check_warmup(self, warmup_num_steps, warmup_type):
        if not isinstance(warmup_num_steps, int) or warmup_num_steps <= 0:
            raise ValueError(f"warmup_num_steps is {warmup_num_steps!r}; it has to be a positive integer")
        self.warmup_num_steps = max(2, warmup_num_steps)
        if warmup_type not in WARMUP_TYPES:
            logger.warning(f"warmup_type {warmup_type!r} is not known: log is used (there are log and linear)")
            warmup_type = "log"
        self.warmup_type = warmup_type

    def _check_total(self, total_num_steps):
        self.total_num_steps = total_num_steps
        if total_num_steps < self.warmup_num_steps:
            logger.warning(f"total_num_steps {total_num_steps} is less than warmup_num_steps {self.warmup_num_steps}: "
                           "the warm-up never ends")


class WarmupLR(_Warmup):
    """Rises from warmup_min_lr to warmup_max_lr (the groups' own lr if None), then stays constant."""

    formula = "WarmupLR"

    def __init__(self, optimizer, warmup_min_lr=0.0, warmup_max_lr=None, warmup_num_steps=1000, warmup_type="log",
                 last_batch_iteration=-1):
        self._init_warmup(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration)

    def _init_warmup(self, optimizer, min_lr, max_lr, warmup_num_steps, warmup_type, last_batch_iteration, **more):
        self.optimizer = torch_optimizer_of(optimizer)
        self._check_warmup(warmup_num_steps, warmup_type)
        if max_lr is None:
            max_lr = [_number(group["lr"]) for group in self.optimizer.param_groups]
        self.min_lrs = per_group(self.optimizer, min_lr, "warmup_min_lr")
        self.max_lrs = per_group(self.optimizer, max_lr, "warmup_max_lr")
        self.delta_lrs = [high - low for high, low in zip(self.max_lrs, self.min_lrs)]
        LearningRateSchedule.__init__(self, optimizer, {
            "warmup_min_lr": self.min_lrs, "warmup_max_lr": self.max_lrs, "warmup_num_steps": warmup_num_steps,
            "warmup_type": self.warmup_type, **more}, last_batch_iteration)


class WarmupDecayLR(WarmupLR):
    """WarmupLR, then falls linearly to 0 at total_num_steps."""

    formula = "WarmupDecayLR"

    def __init__(self, optimizer, total_num_steps, warmup_min_lr=0.0, warmup_max_lr=0.001, warmup_num_steps=1000,
                 warmup_type="log", last_batch_iteration=-1):
        self._init_warmup(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration,
                          total_num_steps=total_num_steps)
        self._check_total(total_num_steps)


class WarmupCosineLR(_Warmup):
    """Ratios of the groups' own lr: up from warmup_min_ratio to 1, and along a cosine down to cos_min_ratio."""

    formula = "WarmupCosineLR"

    def __init__(self, optimizer, total_num_steps, warmup_min_ratio=0.0, warmup_num_steps=1000, cos_min_ratio=0.0001,
                 warmup_type="log", last_batch_iteration=-1):
        self._check_warmup(warmup_num_steps, warmup_type)
        self._check_total(total_num_steps)
        self.warmup_min_ratio, self.cos_min_ratio = warmup_min_ratio, cos_min_ratio
        super().__init__(optimizer, {"total_num_steps": total_num_steps, "warmup_min_ratio": warmup_min_ratio,
                                     "warmup_num_steps": warmup_num_steps, "cos_min_ratio": cos_min_ratio,
                                     "warmup_type": self.warmup_type}, last_batch_iteration)
        self.org_lrs = self._start_lrs

    def get_lr_ratio(self):
        return self._running_from([1.0], self.last_batch_iteration).values(0)[0]


class LRRangeTest(LearningRateSchedule):
    """Rises from lr_range_test_min_lr, to find which rates a model tolerates (Smith 2018)."""

    formula = "LRRangeTest"

    def __init__(self, optimizer, lr_range_test_min_lr=1e-3, lr_range_test_step_size=2000, lr_range_test_step_rate=1.0,
                 lr_range_test_staircase=False, last_batch_iteration=-1):
        if lr_range_test_step_size <= 0:
            raise ValueError(f"lr_range_test_step_size is {lr_range_test_step_size}; it has to be greater than 0")
        self.optimizer = torch_optimizer_of(optimizer)
        self.min_lr = per_group(self.optimizer, lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size, self.step_rate = lr_range_test_step_size, lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        super().__init__(optimizer, {"lr_range_test_min_lr": self.min_lr,
                                     "lr_range_test_step_size": lr_range_test_step_size,
                                     "lr_range_test_step_rate": lr_range_test_step_rate,
                                     "lr_range_test_staircase": lr_range_test_staircase}, last_batch_iteration)

    def get_lr(self):
        return [lr for lr, _, _ in self._values()]

    def step(self, batch_iteration=None):
        super().step(batch_iteration)


class OneCycle(LearningRateSchedule):
    """Up and down once between cycle_min_lr and cycle_max_lr, the momentum (beta1) the other way round, and then decay
    (Smith 2018). An optimizer without betas keeps its momentum."""

    formula = "OneCycle"

    def __init__(self, optimizer, cycle_min_lr, cycle_max_lr, decay_lr_rate=0.0, cycle_first_step_size=2000,
                 cycle_second_step_size=None, cycle_first_stair_count=0, cycle_second_stair_count=None,
                 decay_step_size=0, cycle_momentum=True, cycle_min_mom=0.8, cycle_max_mom=0.9, decay_mom_rate=0.0,
                 last_batch_iteration=-1):
        self.optimizer = torch_optimizer_of(optimizer)
        self._read_steps(cycle_first_step_size, cycle_second_step_size)
        self.min_lrs = per_group(self.optimizer, cycle_min_lr, "cycle_min_lr")
        self.max_lrs = per_group(self.optimizer, cycle_max_lr, "cycle_max_lr")
        self.decay_lr_rate, self.decay_mom_rate, self.decay_step_size = decay_lr_rate, decay_mom_rate, decay_step_size
        self.cycle_momentum = cycle_momentum and self._has_betas()
        min_moms = per_group(self.optimizer, cycle_min_mom, "cycle_min_mom")
        max_moms = per_group(self.optimizer, cycle_max_mom, "cycle_max_mom")
        self.min_moms = [(momentum, ONE_CYCLE_BETA2) for momentum in min_moms]
        self.max_moms = [(momentum, ONE_CYCLE_BETA2) for momentum in max_moms]
        super().__init__(optimizer, {
            "cycle_min_lr": self.min_lrs, "cycle_max_lr": self.max_lrs, "decay_lr_rate": decay_lr_rate,
            "cycle_first_step_size": cycle_first_step_size, "cycle_second_step_size": cycle_second_step_size,
            "cycle_first_stair_count": cycle_first_stair_count, "cycle_second_stair_count": cycle_second_stair_count,
            "decay_step_size": decay_step_size, "cycle_momentum": self.cycle_momentum, "cycle_min_mom": min_moms,
            "cycle_max_mom": max_moms, "decay_mom_rate": decay_mom_rate}, last_batch_iteration)
        self._last_lr = None  # as DeepSpeed has it: get_last_lr() is for after the first step()

    def _read_steps(self, first, second):
        second = first if second is None else second
        if first <= 0 or second < 0:
            raise ValueError(f"the cycle is {first} steps up and {second} down: cycle_first_step_size must be greater than 0, and cycle_second_step_size at least 0")
        self.first_step_size, self.second_step_size = float(first), float(second)
        self.total_size = self.first_step_size + self.second_step_size
        self.step_ratio = self.first_step_size / self.total_size

    def _has_betas(self):
        if "betas" in self.optimizer.defaults:
            return True
        logger.warning(f"cycle_momentum is off: {type(self.optimizer).__name__} has no betas")
        return False

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


SCHEDULES = {schedule.__name__: schedule for schedule in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR,
                                                          WarmupCosineLR)}


def from_config(block, optimizer):
    """The schedule that a ds_config's block `scheduler` names: one of ours, or a class of torch.optim.lr_scheduler."""
    name, params = block["type"], block.get("params") or {}
    made = SCHEDULES.get(name) or getattr(torch.optim.lr_scheduler, name, None) or _without_class(name)
    assert made is not None, (f"scheduler.type {name!r} is neither one of {', '.join(_core.schedule_names())} nor a torch.optim.lr_scheduler class")
    return made(optimizer, **params)


def _without_class(name):
    """A schedule that `tessera train` has and DeepSpeed has not."""
    if name not in _core.schedule_names():
        return None

    class Schedule(LearningRateSchedule):
        formula = name

        def __init__(self, optimizer, **params):
            super().__init__(optimizer, params, -1)

    return Schedule


def running(schedule):
    """The C++ schedule of one of ours, which an engine then saves and loads; None where Python keeps the state."""
    keeps = (LearningRateSchedule.state_dict, LearningRateSchedule.load_state_dict)
    is_ours = isinstance(schedule, LearningRateSchedule)
    return schedule.running if is_ours and (type(schedule).state_dict, type(schedule).load_state_dict) == keeps else None
