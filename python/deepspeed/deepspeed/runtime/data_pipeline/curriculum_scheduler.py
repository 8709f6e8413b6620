"""How hard a step's samples are, from easy to hard: what programs ask that make their batches so themselves, such as GPT-NeoX.

    schedule = CurriculumScheduler({"min_difficulty": 8, "max_difficulty": 1024, "schedule_type": "fixed_linear",
                                    "schedule_config": {"total_curriculum_step": 1000, "difficulty_step": 8}})
    length = schedule.update_difficulty(step)

By `schedule_type`: fixed_linear, fixed_root (also with "root_degree"), fixed_discrete ("difficulty": a list, and "max_step", the last
step of each but the last) and custom (a function of the step, given to set_custom_get_difficulty).
"""

import math

from tessera import _core
from tessera.error_report import made

_NEEDED = {"fixed_linear": ("total_curriculum_step", "difficulty_step"), "fixed_discrete": ("difficulty", "max_step"),
           "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"), "custom": ()}


class CurriculumScheduler:
    def __init__(self, config):
        for key in ("min_difficulty", "max_difficulty", "schedule_type"):
            if key not in config:
                raise AssertionError(f"a curriculum needs '{key}'")
        kind, options = config["schedule_type"], config.get("schedule_config", {})
        if kind not in _NEEDED:
            raise RuntimeError(f"schedule_type {kind!r} is unknown; use {', '.join(_NEEDED)}")
        for key in _NEEDED[kind]:
            if key not in options:
                raise AssertionError(f"a curriculum of schedule_type {kind} needs '{key}' in schedule_config")
        if kind == "fixed_discrete" and not len(options["difficulty"]) == len(options["max_step"]) + 1 > 1:
            raise AssertionError("schedule_config needs a max_step for each difficulty but the last")
        self.state = {"min_difficulty": config["min_difficulty"], "max_difficulty": config["max_difficulty"],
                      "current_difficulty": config["min_difficulty"], "schedule_type": kind}
        if kind != "custom":
            self.state["schedule_config"] = options
        self.first_step = True
        self.custom_get_difficulty = None

    def get_current_difficulty(self):
        return self.state["current_difficulty"]

    def set_current_difficulty(self, difficulty):
        self.state["current_difficulty"] = difficulty

    def set_custom_get_difficulty(self, schedule_function):
        self.custom_get_difficulty = schedule_function

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state

    def get_difficulty(self, global_steps):
        """Of that step, whatever the current one is."""
        kind, options = self.state["schedule_type"], self.state.get("schedule_config", {})
        if kind == "custom":
            if self.custom_get_difficulty is None:
                raise made(_core.UsageError, "a curriculum of schedule_type custom has no function", "CurriculumScheduler",
                           "call set_custom_get_difficulty before it is asked")
            return self.custom_get_difficulty(global_steps)
        if kind == "fixed_discrete":
            passed = sum(global_steps > last for last in options["max_step"])
            return options["difficulty"][passed]
        least, most = self.state["min_difficulty"], self.state["max_difficulty"]
        done = (global_steps / options["total_curriculum_step"]) ** (1 / options.get("root_degree", 1) if kind == "fixed_root" else 1)
        unit = options["difficulty_step"]
        reached = math.floor(least + done * (most - least))
        return min(max(reached - reached % unit, math.ceil(least / unit) * unit), most)

    def update_difficulty(self, global_steps):
        """Makes that step's the current one, unless the hardest is reached; the current one."""
        if self.state["current_difficulty"] < self.state["max_difficulty"]:
            self.state["current_difficulty"] = self.get_difficulty(global_steps)
        return self.state["current_difficulty"]
