"""Timers of the parts of a step, and samples per second."""

import time

from deepspeed.accelerator import get_accelerator
from deepspeed.utils.logging import log_dist
from tessera.comm_log import trimmed_mean as trim_mean  # noqa: F401
from tessera.wall_clock import Stopwatch

FORWARD_MICRO_TIMER = "fwd_microstep"
FORWARD_GLOBAL_TIMER = "fwd"
BACKWARD_MICRO_TIMER = "bwd_microstep"
BACKWARD_GLOBAL_TIMER = "bwd"
BACKWARD_INNER_MICRO_TIMER = "bwd_inner_microstep"
BACKWARD_INNER_GLOBAL_TIMER = "bwd_inner"
BACKWARD_REDUCE_MICRO_TIMER = "bwd_allreduce_microstep"
BACKWARD_REDUCE_GLOBAL_TIMER = "bwd_allreduce"
STEP_MICRO_TIMER = "step_microstep"
STEP_GLOBAL_TIMER = "step"
TIME_EPSILON = 1e-6


def _wait_for_device():
    get_accelerator().synchronize()


class SynchronizedWallClockTimer:
    """timers("forward").start() … .stop(); each waits for the device."""

    class Timer(Stopwatch):
        def __init__(self, name):
            super().__init__(name, _wait_for_device)

    def __init__(self):
        self.timers = {}

    def get_timers(self):
        return self.timers

    def __call__(self, name):
        return self.timers.setdefault(name, self.Timer(name))

    @staticmethod
    def memory_usage():
        now, most = get_accelerator().memory_allocated(), get_accelerator().max_memory_allocated()
        return f" | mem_allocated: {now / 2**30:.4f} GB, peak_allocated: {most / 2**30:.4f} GB"

    def log(self, names, normalizer=1.0, reset=True, memory_breakdown=False, ranks=None):
        assert normalizer > 0.0, f"the normalizer is {normalizer}; it has to be greater than 0"
        times = [f"{name}: {self.timers[name].elapsed(reset=reset) / normalizer:.2f}"
                 for name in names if name in self.timers]
        text = "time (ms) | " + " | ".join(times) + (self.memory_usage() if memory_breakdown else "")
        log_dist(text, ranks=ranks or [0])

    def get_mean(self, names, normalizer=1.0, reset=True):
        assert normalizer > 0.0, f"the normalizer is {normalizer}; it has to be greater than 0"
        means = {name: self.timers[name].mean() / normalizer for name in names if name in self.timers}
        for name in means if reset else ():
            self.timers[name].reset()
        return means


class NoopTimer:
    """The same calls, without effect."""

    class Timer:
        def start(self):
            pass

        def reset(self):
            pass

        def stop(self, **kwargs):
            pass

        def elapsed(self, **kwargs):
            return 0

        def mean(self):
            return 0

    def __init__(self):
        self.timer = self.Timer()

    def __call__(self, name):
        return self.timer

    def get_timers(self):
        return {}

    def log(self, names, normalizer=1.0, reset=True, memory_breakdown=False, ranks=None):
        pass

    def get_mean(self, names, normalizer=1.0, reset=True):
        pass


class ThroughputTimer:
    """Samples per second of training steps after the first `start_step`, whose set-up would spoil the average; reports
    every `steps_per_output` global steps."""

    def __init__(self, config, batch_size, start_step=2, steps_per_output=None, monitor_memory=False, logging_fn=None):
        self.config = config
        self.batch_size = batch_size or 1
        self.start_step = start_step
        self.steps_per_output = steps_per_output
        self.logging = logging_fn or (lambda text: log_dist(text, ranks=[0]))
        self.epoch_count = self.micro_step_count = self.global_step_count = 0
        self.initialized = self.started = False
        self.start_time = self.end_time = 0
        self.step_elapsed_time = self.total_elapsed_time = 0

    def update_epoch_count(self):
        self.epoch_count += 1
        self.micro_step_count = 0

    def _clock(self):
        if self.config.synchronized:
            _wait_for_device()
        return time.perf_counter()

    def start(self):
        if not self.config.enabled:
            return
        self.initialized = self.started = True
        if self.global_step_count >= self.start_step:
            self.start_time = self._clock()

    def stop(self, global_step=False, report_speed=True):
        if not self.config.enabled or not self.started:
            return
        self.started = False
        self.micro_step_count += 1
        if global_step:
            self.global_step_count += 1
        if self.start_time == 0:
            return
        self.end_time = self._clock()
        duration = self.end_time - self.start_time
        self.step_elapsed_time += duration
        self.total_elapsed_time += duration
        if not global_step:
            return
        if report_speed and self._is_report_boundary():
            now = self.batch_size / max(self.step_elapsed_time, TIME_EPSILON)
            self.logging(f"epoch={self.epoch_count}/micro_step={self.micro_step_count}/"
                         f"global_step={self.global_step_count}, RunningAvgSamplesPerSec="
                         f"{self.avg_samples_per_sec():.2f}, CurrSamplesPerSec={now:.2f}")
        self.step_elapsed_time = 0

    def _is_report_boundary(self):
        return self.steps_per_output is not None and self.global_step_count % self.steps_per_output == 0

    def avg_samples_per_sec(self):
        if self.total_elapsed_time == 0:
            return float("-inf")
        return self.batch_size * (self.global_step_count - self.start_step) / self.total_elapsed_time
