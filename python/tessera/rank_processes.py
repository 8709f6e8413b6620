"""One machine's ranks as child processes that live and die together.

    with RankProcesses() as ranks:
        ranks.start(command, environment, log=None)
        code = ranks.wait()

The first that fails ends all others, and gives the exit code. SIGINT, SIGTERM and SIGHUP are handed on; who does not
end within the grace is killed. Each rank leads a process group, so that what it started goes with it; and when this
process is killed, its guard ends the groups (orphan_guard.py). To be used from the main thread, once.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tessera.orphan_guard import end_groups, is_alive

POLL_SECONDS = 0.1
_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RankProcesses:
    def __init__(self, grace_seconds=30):
        self._grace = grace_seconds
        self._children = []
        self._signal = None
        self._handlers = {}
        self._guard = None

    def __enter__(self):
        guard = Path(__file__).with_name("orphan_guard.py")
        self._guard = subprocess.Popen([sys.executable, "-S", "-E", str(guard)], stdin=subprocess.PIPE, text=True,
                                       start_new_session=True)
        for number in _HANDED_ON:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup: the run outlives its terminal
            self._handlers[number] = signal.signal(number, self._hand_on)
        return self

    def __exit__(self, *error):
        self.end_all()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._tell_guard("done")
        self._guard.stdin.close()
        self._guard.wait(timeout=self._grace)

    def start(self, command, environment, log=None):
        """`log` is an open file for both output streams. Returns the process id."""
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self._children.append(child)
        self._tell_guard(child.pid)
        if self._signal is not None:  # came while this one was being started
            self._send(child, self._signal)
        return child.pid

    def wait(self):
        """The exit code of all: 0, that of the first rank which failed, or 128 and the signal's number."""
        deadline = None
        while True:
            codes = [child.poll() for child in self._children]
            failed = next((code for code in codes if code), None)
            if self._signal is not None:
                deadline = deadline or time.monotonic() + self._grace
                if None not in codes or time.monotonic() > deadline:
                    return 128 + self._signal
            elif failed is not None:
                return 128 - failed if failed < 0 else failed
            elif None not in codes:
                return 0
            time.sleep(POLL_SECONDS)

    def end_all(self):
        """Nothing of any rank is left when this returns."""
        end_groups([child.pid for child in self._children if self._is_alive(child.pid)], self._grace, self._is_alive)
        for child in self._children:
            try:
                child.wait(timeout=self._grace)
            except subprocess.TimeoutExpired:
                print(f"process {child.pid} did not exit within {self._grace} s of SIGKILL", file=sys.stderr)

    def _is_alive(self, group):
        for child in self._children:
            child.poll()  # one that has ended is no longer of its group once it has been asked
        return is_alive(group)

    def _hand_on(self, number, _frame):
        again = self._signal is not None
        self._signal = number
        for child in self._children:
            self._send(child, signal.SIGKILL if again else number)

    @staticmethod
    def _send(child, number):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass

    def _tell_guard(self, what):
        try:
            self._guard.stdin.write(f"{what}\n")
            self._guard.stdin.flush()
        except BrokenPipeError:
            pass
