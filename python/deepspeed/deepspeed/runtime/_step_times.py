"""How long the parts of a step take, for wall_clock_breakdown and the flops profiler."""

import contextlib

from deepspeed.utils.timer import (BACKWARD_GLOBAL_TIMER, BACKWARD_MICRO_TIMER, FORWARD_GLOBAL_TIMER, FORWARD_MICRO_TIMER,
                                   STEP_GLOBAL_TIMER, STEP_MICRO_TIMER, SynchronizedWallClockTimer)

_MICRO_TIMERS = {"fwd": FORWARD_MICRO_TIMER, "bwd": BACKWARD_MICRO_TIMER, "step": STEP_MICRO_TIMER}
_GLOBAL_TIMERS = {"fwd": FORWARD_GLOBAL_TIMER, "bwd": BACKWARD_GLOBAL_TIMER, "step": STEP_GLOBAL_TIMER}


class StepTimes:
    """`timers`: DeepSpeed's, of a micro batch and of all of a step. `last`: milliseconds of each part of the last step.
    Nothing is measured unless wall_clock_breakdown or the profiler asks for it."""

    def __init__(self, breakdown, memory_breakdown, profiled):
        self.timers = SynchronizedWallClockTimer()
        self.last = {}
        self._breakdown, self._memory = breakdown, memory_breakdown
        self._measured = [_MICRO_TIMERS, _GLOBAL_TIMERS] if breakdown else [_GLOBAL_TIMERS] if profiled else []

    @contextlib.contextmanager
    def of(self, part):
        running = [self.timers(names[part]) for names in self._measured]
        running = [timer for timer in running if not timer.started_]  # a forward inside a forward counts once
        for timer in running:
            timer.start()
        try:
            yield
        finally:
            for timer in running:
                timer.stop()

    def end_micro_batch(self, ends_step, says):
        """`says`: whether this rank prints the lines of wall_clock_breakdown."""
        lines = [_taken(self.timers, names) for names in self._measured if names is _MICRO_TIMERS or ends_step]
        if ends_step and self._measured:
            self.last = lines[-1]
        for times in lines if self._breakdown and says else ():
            text = " | ".join(f"{name}: {spent:.2f}" for name, spent in times.items())
            print(f"time (ms) | {text}{self.timers.memory_usage() if self._memory else ''}", flush=True)


def _taken(timers, names):
    """Of those that ran, which begin anew."""
    return {name: timers(name).elapsed() for name in names.values() if name in timers.timers}
