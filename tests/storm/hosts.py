"""Faults of hosts: three that network namespaces stand for (tests/hosts), one rank on each, started by ssh from the first.

A rank, the launcher, a host's own launcher or its ssh session is killed, a host stops, or its link is lost: at moments that the seed
draws, on a host that it draws.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from outcomes import hold
from storm_runs import QUIET, RAW, checked, rows, tags

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))
from cluster import OWN_TMPDIR, Cluster, send, why_not  # noqa: E402
from tessera_runs import TESSERA  # noqa: E402

SILENCE = 4  # seconds: TESSERA_TIMEOUT, and so what a host's launcher may be silent
END = 5      # seconds, from the news of a fault until all that it reaches has ended
SLACK = 5    # seconds more that this machine may take, whose two cores twelve programs share here
PROMISE = (f"A run over three hosts by ssh, with state offloaded to files of each host, ends by itself: within {END} s after a kill, "
           f"{SILENCE} s (TESSERA_TIMEOUT) later where nothing comes of a host any more; the culprit is named with its host; and on every "
           "host no process, nothing in /dev/shm and no offloaded byte is left, on one that is cut off too, on one that was stopped once "
           "it goes on. The newest checkpoint verifies.")
FAULTS = 100
AT_A_TIME = 2  # much of a run is waiting
NAMES = ["node1", "node2", "node3"]
KINDS = ["a rank is killed", "the launcher is killed", "a host's launcher is killed", "an ssh session is killed", "a host's link goes down",
         "a host is unplugged", "a host stops"]
MOMENTS = ["start", "train", "train", "save"]
SWAP = f"{OWN_TMPDIR}/swap"
ZERO = [{"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": SWAP}},
        {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": SWAP}, "offload_param": {"device": "nvme", "nvme_path": SWAP}},
        {"stage": 1}]


@dataclass
class Case:
    number: int
    fault: str
    moment: str
    host: str
    zero: dict

    def about(self):
        return f"{self.moment}, {self.host}, stage {self.zero['stage']}: "


def all_cases(seed, count):
    draw = random.Random(f"{seed}/hosts")
    return [Case(number, KINDS[number % len(KINDS)], draw.choice(MOMENTS), draw.choice(NAMES), draw.choice(ZERO)) for number in range(count)]


class Fault:
    def __init__(self, storm, place, case, hosts):
        self.case, self.hosts, self.host, self.place = case, hosts, hosts[case.host], place
        self.draw = random.Random(f"{storm.seed}/hosts/{case.number}")
        self.folder = place.folder / f"hosts-{case.number}"
        self.output = self.folder / "out"
        self.folder.mkdir()

    def run(self):
        """Seconds from the fault to the end of all that it could reach."""
        for host in self.hosts:
            host.do("mkdir", "-p", SWAP)
        settings = {"output": self.output, "deepspeed.zero_optimization": json.dumps(self.case.zero)}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        with open(self.folder / "said", "w") as said:
            self.run_process = subprocess.Popen(
                self.hosts["node1"].words("env", "-C", self.folder, TESSERA, "train", self.place.run_file, "--hostfile",
                                          self.hosts.hostfile(), *words),
                env={**os.environ, **{name: str(value) for name, value in QUIET.items()}, "TESSERA_TIMEOUT": str(SILENCE)},
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
        try:
            seconds = self.disturbed()
        finally:
            send(self.run_process.pid, signal.SIGKILL)
            self.run_process.wait(30)
        self.require_right_words()
        for step in tags(self.output)[:1]:
            checked("checkpoint", "verify", self.output / "checkpoints" / f"global_step{step}")
        shutil.rmtree(self.folder)
        return seconds

    def said(self):
        return (self.folder / "said").read_text(errors="replace")

    def require_running(self):
        hold(self.run_process.poll() is None, f"it ended before the fault, with code {self.run_process.returncode}\n{self.said()[-3000:]}")

    def wait_until(self, condition, what, seconds=60):
        end = time.monotonic() + seconds
        while not (value := condition()):
            self.require_running()
            hold(time.monotonic() < end, f"{what}: not within {seconds} s\n{self.said()[-3000:]}")
            time.sleep(0.01)
        return value

    def wait_for_moment(self):
        if self.case.moment == "start":
            time.sleep(self.draw.uniform(0.05, 1.5))
        else:
            self.wait_until(lambda: len(rows(self.output)) >= 3, "three steps")
        if self.case.moment == "save":
            self.wait_until(lambda: any((self.output / "checkpoints").glob("*.saving")), "a save", 20)
        else:
            time.sleep(self.draw.uniform(0, 0.2))

    def victim(self):
        """The process to kill; at the start it may not be there yet."""
        patterns = {"the launcher is killed": r"tessera train .*--hostfile", "a host's launcher is killed": r"tessera launch --node-part",
                    "an ssh session is killed": r"^sshd: root@notty"}
        if self.case.fault == "a rank is killed":
            return self.wait_until(lambda: self.host.ranks(), f"a rank on {self.host.name}").popitem()[1]
        host = self.hosts["node1"] if self.case.fault == "the launcher is killed" else self.host
        pattern = re.compile(patterns[self.case.fault])
        # The program itself, not an ssh or a shell whose arguments name it.
        return self.wait_until(lambda: [pid for pid, command in host.processes().items()
                                        if pattern.search(command) and not command.startswith(("ssh ", "bash ", "sh ", "env "))],
                               f"{self.case.fault} on {host.name}")[0]

    def disturbed(self):
        self.wait_for_moment()
        fault = self.case.fault
        victim = self.victim() if fault.endswith("killed") else None
        self.require_running()
        began = time.monotonic()
        cut = {"a host's link goes down": self.host.link_down, "a host is unplugged": self.host.unplug, "a host stops": self.host.freeze}
        if victim:
            send(victim, signal.SIGKILL)
            bound = END
        else:
            cut[fault]()
            # Of a host that has not begun to speak, ssh's own time-outs tell, twice as late at most.
            bound = SILENCE + 1 + END + (SILENCE + 2 if self.case.moment == "start" else 0)
        self.require_end(began, bound)
        seconds = time.monotonic() - began
        if fault == "a host stops":
            self.host.thaw()
            self.require_end(time.monotonic(), SILENCE + 1 + END)
        return seconds

    def left(self):
        """What of the run is there still; not on a host that is stopped, nor of sshd, which waits for a client that it cannot reach."""
        found = [f"the launcher, process {self.run_process.pid}"] if self.run_process.poll() is None else []
        stopped = self.host if self.case.fault == "a host stops" and self.is_stopped() else None
        if stopped is self.hosts["node1"]:
            found = []
        for host in self.hosts:
            if host is stopped:
                continue
            found += [f"{host.name}: {command or pid}" for pid, command in host.processes().items() if not command.startswith("sshd:")]
            found += [f"{host.name}: /dev/shm/{name}" for name in host.shared_memory()]
            found += [f"{host.name}: {SWAP}/{name}" for name in host.do("ls", "-A", SWAP).split()]
        return found

    def is_stopped(self):
        return Path(f"/proc/{self.host.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    def require_end(self, began, bound):
        while left := self.left():
            hold(time.monotonic() - began < bound + SLACK, f"after {bound} + {SLACK} s there is still {left}\n{self.said()[-3000:]}")
            time.sleep(0.05)

    def require_right_words(self):
        text, host, fault = self.said(), self.host.name, self.case.fault
        code = self.run_process.returncode
        for raw in RAW:
            hold(raw not in text, f"'{raw}' in what it said:\n{text[-6000:]}")
        hold(code not in (0, None), f"exit code {code}\n{text[-3000:]}")
        if fault == "the launcher is killed" or (fault == "a host stops" and host == "node1"):
            return  # there was nobody to tell it
        rank = NAMES.index(host)
        lost = rf"error: (host {host} has not been heard of|{host} (lost its connection|could not be reached))"
        if fault == "a rank is killed":
            expected = rf"error: rank {rank} on {host} was killed by SIGKILL"
        elif not fault.endswith("killed") and host == "node1":  # the launcher's own: no other one can be heard
            expected = (r"error: (host )?node[23] (has not been heard of|lost its connection|could not be reached)"
                        r"|error: cannot find the address of node1")  # it had not yet asked for that
        else:
            expected = lost
        hold(re.search(expected, text), f"nobody says '{expected}'\n{text[-4000:]}")


def run(storm, place, count):
    storm.begin("hosts", PROMISE)
    if reason := why_not():
        storm.say(f"hosts: skipped: {reason}")
        storm.parts[-1].figures.append(f"skipped: {reason}")
        return
    slowest = {}

    def attempt(case):
        """None where it was not wanted; else (seconds, what did not hold)."""
        if not storm.wanted(f"hosts/{case.number}"):
            return None
        try:
            with Cluster(place.folder / f"cluster-{case.number}") as hosts:
                return Fault(storm, place, case, hosts).run(), ""
        except (AssertionError, OSError, subprocess.SubprocessError) as failure:
            return 0, f"{case.about()}{failure}"

    cases = all_cases(storm.seed, max(count, FAULTS) if storm.case else count)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for case, outcome in zip(cases, pool.map(attempt, cases)):
            if outcome is None:
                continue
            seconds, failure = outcome
            slowest[case.fault] = max(seconds, slowest.get(case.fault, 0))
            storm.add(f"hosts/{case.number}", case.fault, failure)
    for fault, seconds in slowest.items():
        storm.parts[-1].figures.append(f"{fault}: the slowest end came {seconds:.1f} s after it")
