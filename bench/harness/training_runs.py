"""The ranks of one case of training_cases in training: their steps, and what they take of memory."""

import contextlib
import threading
import time

from harness.processes import Failure, Ranks

START_SECONDS = 900  # DeepSpeed may compile its operators: minutes
STEP_SECONDS = 180


def start_ranks(case, setting):
    return Ranks(case.name, case.command(setting), case.environment(), setting.ranks, joined=case.stage is not None)


class Run:
    """The ranks of one case in training."""

    def __init__(self, ranks, setting, begin):
        self.ranks = ranks
        self.first_loss = self._values(ranks.answers("its first step", START_SECONDS))["loss"]
        self.start_seconds = time.perf_counter() - begin
        self._on_device = setting.device != "cpu"
        self._tokens = setting.micro_batch * setting.length * setting.ranks

    @staticmethod
    def _values(answers):
        """The loss is rank 0's, the times are the slowest rank's, the device's bytes those of the rank that has most."""
        steps, updates, losses, device_bytes = zip(*(map(float, answer.split()) for answer in answers))
        return {"step, s": max(steps), "update, s": max(updates), "loss": losses[0], "device bytes": max(device_bytes)}

    def step(self):
        values = self._values(self.ranks.ask(1, STEP_SECONDS))
        self.last_loss, self._device_bytes = values.pop("loss"), values.pop("device bytes")
        return {**values, "tokens/s": self._tokens / values["step, s"]}

    def memory(self):
        """Of a rank, around and in one more step; on a device, its peak there so far."""
        if self._on_device:
            return {"peak, MB": self._device_bytes / 1e6}
        values = {"memory, MB": self.ranks.memory_bytes() / 1e6}
        seen, done = [], threading.Event()

        def watch():
            while not done.wait(0.005):
                with contextlib.suppress(Failure):
                    seen.append(self.ranks.memory_bytes() / 1e6)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self.ranks.ask(1, STEP_SECONDS)
        finally:
            done.set()
            watcher.join()
        values["peak, MB"] = max(seen, default=values["memory, MB"])
        values["peak resident, MB"] = max(member.peak_resident_bytes() for member in self.ranks.members) / 1e6
        return values
