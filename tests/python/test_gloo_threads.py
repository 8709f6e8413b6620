"""The interpreter's end waits until torch's gloo threads have let go of their tensors."""

import itertools
import subprocess
import sys

import ranks
from tessera import gloo_threads


def test_it_sees_the_threads_of_gloo():
    """By the name that torch gives them, which another torch may change. A thread takes its name only once it runs."""
    program = ("import time; import torch.distributed as dist; from tessera import gloo_threads; before = len(gloo_threads._threads())\n"
               "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1); end = time.monotonic() + 30\n"
               "while not gloo_threads._threads() and time.monotonic() < end: time.sleep(0.01)\n"
               "print(before, len(gloo_threads._threads()))")
    done = subprocess.run([sys.executable, "-c", program], env=ranks.environment(), capture_output=True, text=True, timeout=90)
    before, after = map(int, done.stdout.split())
    assert (before, after > 0) == (0, True), done.stderr


def test_it_waits_for_threads_that_run_or_were_woken(monkeypatch):
    looks = iter([{"1": ("R", "5")}, {"1": ("S", "6")}, {"1": ("S", "7")}, {"1": ("S", "7")}])
    monkeypatch.setattr(gloo_threads, "_threads", lambda: next(looks))
    gloo_threads.wait_until_idle()
    assert next(looks, None) is None


def test_it_ends_however_busy_they_are(monkeypatch):
    numbers = itertools.count()
    monkeypatch.setattr(gloo_threads, "_threads", lambda: {"1": ("R", str(next(numbers)))})
    monkeypatch.setattr(gloo_threads, "LONGEST", 0.05)
    gloo_threads.wait_until_idle()
    assert next(numbers) > 2
