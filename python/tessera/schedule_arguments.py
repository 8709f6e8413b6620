"""Flags of a program that choose a learning-rate schedule, and the ds_config's block `scheduler` that they mean."""

_SCHEDULE_OF = "lr_schedule"

# Name, type or None for a switch, default, help; by the schedules that take them.
RANGE_TEST = (
    ("lr_range_test_min_lr", float, 1e-3, "the first learning rate"),
    ("lr_range_test_step_rate", float, 1.0, "increase every step_size steps, as a fraction of the first rate"),
    ("lr_range_test_step_size", int, 1000, "steps"),
    ("lr_range_test_staircase", None, False, "hold each rate for step_size steps"),
)
ONE_CYCLE = (
    ("cycle_first_step_size", int, 1000, "steps while the rate rises"),
    ("cycle_first_stair_count", int, -1, "stairs while the rate rises"),
    ("cycle_second_step_size", int, -1, "steps while the rate falls"),
    ("cycle_second_stair_count", int, -1, "stairs while the rate falls"),
    ("decay_step_size", int, 1000, "steps per decay after the cycle"),
    ("cycle_min_lr", float, 0.01, "the lowest learning rate of the cycle"),
    ("cycle_max_lr", float, 0.1, "the highest learning rate of the cycle"),
    ("decay_lr_rate", float, 0.0, "decay of the learning rate after the cycle"),
    ("cycle_momentum", None, False, "cycle the momentum too"),
    ("cycle_min_mom", float, 0.8, "the lowest momentum of the cycle"),
    ("cycle_max_mom", float, 0.9, "the highest momentum of the cycle"),
    ("decay_mom_rate", float, 0.0, "decay of the momentum after the cycle"),
)
WARMUP = (
    ("warmup_min_lr", float, 0, "the first learning rate"),
    ("warmup_max_lr", float, 0.001, "the learning rate after the warm-up"),
    ("warmup_num_steps", int, 1000, "warm-up steps"),
    ("warmup_type", str, "log", "log or linear"),
)
COSINE = (
    ("warmup_min_ratio", float, 0.01, "the first learning rate, as a fraction of the optimizer's"),
    ("cos_min_ratio", float, 0.01, "the last learning rate, as a fraction of the optimizer's"),
)
_COSINE_ALSO = ("warmup_num_steps", "warmup_type")

TAKEN_BY = {"LRRangeTest": RANGE_TEST, "OneCycle": ONE_CYCLE, "WarmupLR": WARMUP, "WarmupDecayLR": WARMUP,
            "WarmupCosineLR": COSINE + tuple(row for row in WARMUP if row[0] in _COSINE_ALSO)}

# Where a schedule's params name its highest learning rate.
_LR_IN = {"LRRangeTest": "lr_range_test_min_lr", "OneCycle": "cycle_max_lr", "WarmupLR": "warmup_max_lr",
          "WarmupDecayLR": "warmup_max_lr"}


def add_arguments(parser):
    group = parser.add_argument_group("Convergence Tuning", "the learning-rate schedule and its parameters")
    group.add_argument(f"--{_SCHEDULE_OF}", type=str, default=None, help=", ".join(TAKEN_BY))
    for name, kind, default, text in RANGE_TEST + ONE_CYCLE + WARMUP + COSINE:
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
