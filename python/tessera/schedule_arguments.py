"""Flags of a program that choose a learning-rate schedule, and the ds_config's block `scheduler` that they mean."""

from tessera.config_keys import params_of

_SCHEDULE_OF = "lr_schedule"
_WITHOUT_FLAG = ("total_num_steps", "last_batch_iteration")
_TYPES = {"bool": None, "int": int, "number": float, "number or list": float}

# What DeepSpeed's flags are when they are not given, where that differs from the keys of a ds_config.
_DEFAULTS = {"lr_range_test_step_size": 1000, "cycle_first_step_size": 1000, "cycle_first_stair_count": -1,
             "cycle_second_step_size": -1, "cycle_second_stair_count": -1, "decay_step_size": 1000, "cycle_min_lr": 0.01,
             "cycle_max_lr": 0.1, "cycle_momentum": False, "warmup_min_ratio": 0.01, "cos_min_ratio": 0.01,
             "warmup_max_lr": 0.001}


def _flags_of(schedule):
    """Name, type or None for a switch, default, help: of the engine's table of keys."""
    return tuple((name, _TYPES.get(row["type"], str), _DEFAULTS.get(name, row["default"]), row["meaning"])
                 for name, row in params_of("scheduler", schedule).items() if name not in _WITHOUT_FLAG)


TAKEN_BY = {name: _flags_of(name) for name in ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")}

# Where a schedule's params name its highest learning rate.
_LR_IN = {"LRRangeTest": "lr_range_test_min_lr", "OneCycle": "cycle_max_lr", "WarmupLR": "warmup_max_lr",
          "WarmupDecayLR": "warmup_max_lr"}


def add_arguments(parser):
    group = parser.add_argument_group("Convergence Tuning", "the learning-rate schedule and its parameters")
    group.add_argument(f"--{_SCHEDULE_OF}", type=str, default=None, help=", ".join(TAKEN_BY))
    for name, kind, default, text in {row[0]: row for rows in TAKEN_BY.values() for row in rows}.values():
        how = {"action": "store_true"} if kind is None else {"type": kind}
        group.add_argument(f"--{name}", default=default, help=text, **how)
    return parser


def override(rows, args, params):
    """Puts those of the flags that `args` has, and that are given, into `params`."""
    for name, *_ in rows:
        value = getattr(args, name, None)
        if value is not None:
            params[name] = value


def block_from_arguments(args):
    """(the block, None), or (None, what is wrong)."""
    name = getattr(args, _SCHEDULE_OF, None)
    if name is None:
        return None, f"--{_SCHEDULE_OF} not specified on command line"
    if name not in TAKEN_BY:
        return None, f"{name} is not supported LR schedule; use one of {', '.join(TAKEN_BY)}"
    params = {}
    override(TAKEN_BY[name], args, params)
    return {"type": name, "params": params}, None


def lr_of_block(block):
    """(the highest learning rate, ""), or (None, why there is none)."""
    for key, what in (("type", "LR schedule type"), ("params", "LR schedule params")):
        if key not in block:
            return None, f"{what} not defined in config"
    name = block["type"]
    if name not in TAKEN_BY:
        return None, f"{name} is not a valid LR schedule"
    if name not in _LR_IN:
        return None, f"{name} scales the optimizer's learning rate: its params define none"
    return block["params"][_LR_IN[name]], ""
