"""Stops the ranks of a launcher that was killed before it could do so itself.

Run as a process of its own, by its file: it imports nothing of Tessera. Standard input brings one process group a line;
"done" means that the launcher has ended in order. When the input ends without it, all groups get SIGTERM, and SIGKILL
after a grace.
"""

import os
import signal
import sys
import time

GRACE_SECONDS = 10


def is_alive(group):
    """Has the process group a process; also one that has ended, and whose parent has not asked for its code."""
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True


def end_groups(groups, grace, is_alive=is_alive):
    """SIGTERM to the process groups, and SIGKILL to those that are there after `grace` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            try:
                os.killpg(group, number)
            except (ProcessLookupError, PermissionError):
                pass
        deadline = time.monotonic() + grace
        while number == signal.SIGTERM and time.monotonic() < deadline and any(map(is_alive, groups)):
            time.sleep(0.1)


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = []
    for line in sys.stdin:
        if line.strip() == "done":
            return
        groups.append(int(line))
    end_groups(groups, GRACE_SECONDS)


if __name__ == "__main__":
    main()
