"""Timers with names.

A stopwatch may wait for the device before it reads the clock, so that it measures work and not launches. Times are in
milliseconds. Not safe to use from several threads.
"""

import time


class Stopwatch:
    """Call start() and stop() as often as you like; elapsed() is the sum of the recorded spans, mean() their mean."""

    def __init__(self, name, synchronize):
        self.name_, self.started_ = name, False
        self._synchronize, self._start, self._total, self._records = synchronize, 0.0, 0.0, []

    def start(self):
        assert not self.started_, f"timer {self.name_} is already running: call stop() first"
        self._synchronize()
        self._start, self.started_ = time.perf_counter(), True

    def stop(self, reset=False, record=False):
        assert self.started_, f"timer {self.name_} is not running: call start() first"
        self._synchronize()
        span = (time.perf_counter() - self._start) * 1e3
        self._total = span if reset else self._total + span
        self._records.append(span)
        self.started_ = False

    def reset(self):
        self.started_, self._total, self._records = False, 0.0, []

    def elapsed(self, reset=True):
        """Total milliseconds. A running timer is read and keeps running."""
        running = self.started_
        if running:
            self.stop()
        total = self._total
        if reset:
            self.reset()
        if running:
            self.start()
        return total

    def mean(self):
        return sum(self._records) / len(self._records) if self._records else 0.0
