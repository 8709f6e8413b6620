"""Learning-rate schedules, the names of their parameters, and flags that choose one."""

import argparse

from tessera import schedule_arguments
from tessera.config_keys import params_of
from tessera.schedule_arguments import (  # noqa: F401
    add_arguments as add_tuning_arguments,
    block_from_arguments as get_config_from_args,
    lr_of_block as get_lr_from_config,
)
from tessera.schedules import (  # noqa: F401
    LRRangeTest,
    OneCycle,
    SCHEDULES,
    WarmupCosineLR,
    WarmupDecayLR,
    WarmupLR,
    torch_optimizer_of as get_torch_optimizer,
)

LR_SCHEDULE = "lr_schedule"
VALID_LR_SCHEDULES = list(SCHEDULES)

# Names of schedules, and of their parameters: CYCLE_MIN_LR = "cycle_min_lr" and so on.
LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = VALID_LR_SCHEDULES
WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = params_of("scheduler", WARMUP_LR)["warmup_type"]["choices"]
globals().update({key.upper(): key for name in VALID_LR_SCHEDULES for key in params_of("scheduler", name)})


def parse_arguments():
    """(known flags of this process's command line, the others)."""
    return add_tuning_arguments(argparse.ArgumentParser()).parse_known_args()


def override_lr_range_test_params(args, params):
    schedule_arguments.override(schedule_arguments.TAKEN_BY[LR_RANGE_TEST], args, params)


def override_1cycle_params(args, params):
    schedule_arguments.override(schedule_arguments.TAKEN_BY[ONE_CYCLE], args, params)


def override_warmupLR_params(args, params):
    schedule_arguments.override(schedule_arguments.TAKEN_BY[WARMUP_LR], args, params)


def override_warmupCosineLR_params(args, params):
    schedule_arguments.override(schedule_arguments.TAKEN_BY[WARMUP_COSINE_LR], args, params)


def override_params(args, params):
    """All of them."""
    for rows in schedule_arguments.TAKEN_BY.values():
        schedule_arguments.override(rows, args, params)


def update_lr(param_groups, lrs):
    """Writes the rates, and returns what the groups then have."""
    for group, lr in zip(param_groups, lrs):
        if hasattr(group["lr"], "fill_"):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
    return [group["lr"] for group in param_groups]
