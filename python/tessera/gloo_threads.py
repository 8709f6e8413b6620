"""The end of a program whose ranks spoke over torch's gloo.

A gloo thread lets go of a tensor only after it has told that the work is over. Where it is the last to hold the tensor, it needs
the interpreter for that; one that has begun to end gives it none, and the thread aborts the process. So the interpreter's end waits
until these threads have nothing to do any more.
"""

import atexit
import time
from pathlib import Path

LONGEST = 2.0  # seconds
SAMPLE = 0.01


def _threads():
    """{thread: (its state, how often it has waited)} of gloo's."""
    found = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            if (task / "comm").read_text().strip() == "pt_gloo_runloop":
                lines = (line.split(":", 1) for line in (task / "status").read_text().splitlines())
                status = {key: value.strip() for key, value in lines}
                found[task.name] = (status["State"][0], status["voluntary_ctxt_switches"])
        except OSError:
            pass  # it has just ended
    return found


def wait_until_idle():
    """Until each of them waits, and has not been woken since the last look."""
    end, before = time.monotonic() + LONGEST, None
    while time.monotonic() < end:
        now = _threads()
        if now == before and all(state == "S" for state, _ in now.values()):
            return
        if not now:
            return
        before = now
        time.sleep(SAMPLE)


atexit.register(wait_until_idle)
