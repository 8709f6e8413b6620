"""Learning-rate schedules, the names of their parameters, and flags that choose one."""

import argparse

from tessera import schedule_arguments
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

LR_RANGE_TEST = "LRRangeTest"
LR_RANGE_TEST_MIN_LR = "lr_range_test_min_lr"
LR_RANGE_TEST_STEP_RATE = "lr_range_test_step_rate"
LR_RANGE_TEST_STEP_SIZE = "lr_range_test_step_size"
LR_RANGE_TEST_STAIRCASE = "lr_range_test_staircase"

ONE_CYCLE = "OneCycle"
CYCLE_MIN_LR = "cycle_min_lr"
CYCLE_MAX_LR = "cycle_max_lr"
DECAY_LR_RATE = "decay_lr_rate"
CYCLE_FIRST_STEP_SIZE = "cycle_first_step_size"
CYCLE_SECOND_STEP_SIZE = "cycle_second_step_size"
CYCLE_FIRST_STAIR_COUNT = "cycle_first_stair_count"
CYCLE_SECOND_STAIR_COUNT = "cycle_second_stair_count"
DECAY_STEP_SIZE = "decay_step_size"
CYCLE_MIN_MOM = "cycle_min_mom"
CYCLE_MAX_MOM = "cycle_max_mom"
DECAY_MOM_RATE = "decay_mom_rate"

WARMUP_LR = "WarmupLR"
WARMUP_DECAY_LR = "WarmupDecayLR"
WARMUP_COSINE_LR = "WarmupCosineLR"
WARMUP_MIN_LR = "warmup_min_lr"
WARMUP_MAX_LR = "warmup_max_lr"
WARMUP_NUM_STEPS = "warmup_num_steps"
WARMUP_TYPE = "warmup_type"
WARMUP_LOG_RATE = "log"
WARMUP_LINEAR_RATE = "linear"
WARMUP_MIN_RATIO = "warmup_min_ratio"
COS_MIN_RATIO = "cos_min_ratio"
TOTAL_NUM_STEPS = "total_num_steps"


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
