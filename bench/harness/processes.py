"""Programs that are told by lines on stdin and answer by lines on stdout, alone or as the ranks of one case.

Every wait has a timeout and names what it waits for. Each program leads a process group of its own, which ends with the `with` block
that started it, however that is left; on SIGTERM too, after exit_on_sigterm().
"""

import contextlib
import os
import pathlib
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time

GRACE_SECONDS = 10  # from the end of its stdin to SIGTERM, and from there to SIGKILL


class Failure(Exception):
    """A program ended or did not answer: a case failed, others may go on."""


def exit_on_sigterm():
    """So that `with` blocks are left, as on Ctrl-C."""
    def leave(number, _frame):
        raise SystemExit(128 + number)
    signal.signal(signal.SIGTERM, leave)


class StillWaiting(Failure):
    """The timeout of a wait passed."""


class Process:
    """A context manager. Not for several threads."""

    def __init__(self, name, command, environment):
        self.name = name
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        try:
            self._process = subprocess.Popen([str(word) for word in command], env=environment, text=True, stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True)
        except OSError as error:
            raise Failure(f"{name} did not start: {error}") from None
        self._lines = queue.SimpleQueue()  # None: the end
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, error, _value, _trace):
        self.close_stdin()
        if error is None and self._ends_within(GRACE_SECONDS):
            number = signal.SIGKILL  # for what it may have left
        else:
            number = signal.SIGTERM  # ninja ends its compilers, which are in groups of their own
        self._signal(number)
        if not self._ends_within(GRACE_SECONDS):
            self._signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join(GRACE_SECONDS)
        self._process.stdout.close()
        self._errors.close()

    def _ends_within(self, seconds):
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _signal(self, number):
        """To all of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def close_stdin(self):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def tell(self, line):
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise Failure(f"{self.name} ended: {self.last_words()}") from None

    def answer(self, what, seconds=120):
        """The next line that it says."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise StillWaiting(f"{self.name} did not reach {what} within {seconds:g} s") from None
        if line is None:
            raise Failure(f"{self.name} ended before {what}: {self.last_words()}")
        return line

    def ask(self, line, seconds=120):
        self.tell(line)
        return self.answer(f"the answer to '{line}'", seconds)

    def rest(self, what, seconds=120):
        """The lines until it ends of itself, successfully."""
        lines, code = self._read_to_end(what, seconds)
        if code != 0:
            raise Failure(f"{self.name} ended with exit code {code}: {self.last_words()}")
        return lines

    def finish(self, seconds):
        """Waits for its end; the exit code."""
        return self._read_to_end("its work", seconds)[1]

    def _read_to_end(self, what, seconds):
        self.close_stdin()
        lines, deadline = [], time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise StillWaiting(f"{self.name} did not finish {what} within {seconds:g} s") from None
            if line is None:
                break
            lines.append(line)
        if not self._ends_within(GRACE_SECONDS):
            raise Failure(f"{self.name} did not exit after {what}")
        return lines, self._process.returncode

    def runs(self):
        return self._process.poll() is None

    def last_words(self):
        """The last line of its standard error that says something, as an exception's is."""
        self._ends_within(1)
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 4000))
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        named = [line for line in lines if "error" in line.lower() and "torch.distributed.elastic" not in line]
        return (named or lines or [f"exit code {self._process.returncode}"])[-1][:300]

    def peak_resident_bytes(self):
        """Of its whole life, pages that it shares counted in full."""
        return self._proc_bytes("status", "VmHWM")

    def memory_bytes(self):
        """Anonymous memory, and its share of memory that it shares with other ranks. Not the files of programs and libraries,
        which whoever uses them shares: how many do depends on what else is being measured."""
        return self._proc_bytes("smaps_rollup", "Pss_Anon", "Pss_Shmem")

    def _proc_bytes(self, file, *keys):
        """The sum of these lines. A process that has ended has none of them, or no file."""
        try:
            lines = pathlib.Path(f"/proc/{self._process.pid}/{file}").read_text().splitlines()
        except OSError:
            lines = []
        kilobytes = [int(line.split()[1]) for line in lines if line.split(":")[0] in keys]
        if len(kilobytes) != len(keys):
            raise Failure(f"{self.name} ended: {self.last_words()}")
        return 1024 * sum(kilobytes)


def run(name, command, environment, seconds=120):
    """The lines that it says; a Failure when it fails."""
    with Process(name, command, environment) as process:
        return process.rest(name, seconds)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Ranks:
    """The ranks of one case, as a launcher would start them; with joined=False each believes to be alone. A context manager."""

    def __init__(self, name, command, environment, count, joined=True):
        port = free_port()
        self.members = []
        for rank in range(count):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
                     "LOCAL_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if joined else {}
            self.members.append(Process(f"{name}, rank {rank}", command, {**environment, **place}))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for member in self.members:
            member.close_stdin()  # all may end together
        for member in self.members:
            member.__exit__(*error)

    def answers(self, what, seconds=120):
        """One of each rank. The first that ends is the one that failed: its peers may wait for it for long."""
        found, deadline = {}, time.monotonic() + seconds
        while len(found) < len(self.members):
            for member in self.members:
                if member not in found:
                    try:
                        found[member] = member.answer(what, 0.05)
                    except StillWaiting:
                        if time.monotonic() > deadline:
                            raise Failure(f"{member.name} did not reach {what} within {seconds:g} s") from None
        return [found[member] for member in self.members]

    def tell(self, line):
        for member in self.members:
            member.tell(line)

    def ask(self, line, seconds=120):
        self.tell(line)
        return self.answers(f"the answer to '{line}'", seconds)

    def rest(self, what, seconds=120):
        """The lines that rank 0 says until all have ended."""
        for member in self.members:
            member.close_stdin()  # what they do at their end may take all of them
        return [member.rest(what, seconds) for member in self.members][0]

    def memory_bytes(self):
        """Of a rank on average: whose page it is that two of them have looked at says nothing."""
        return sum(member.memory_bytes() for member in self.members) / len(self.members)
