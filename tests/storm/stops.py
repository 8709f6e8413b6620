"""SIGSTOP: a process that does not go on, for a while or for ever.

For a while, and shorter than TESSERA_TIMEOUT: the run goes on as if nothing had been. For ever: the others end within the
timeout and say who was missing; and when the stopped one wakes up, it ends too, and what was saved is as it was.
"""

import os
import random
import re
import shutil
import signal
import time
from dataclasses import dataclass

from kills import CONFIGURATIONS, contents
from outcomes import hold
from storm_runs import (checked, latest_step, require_clean, require_same_numbers, require_whole, resumed_step, rows, run_of, tags,
                        train_arguments)
from tessera_runs import alive

PROMISE = ("A rank or the launcher is stopped (SIGSTOP) while the run starts, trains or saves. For less than "
           "TESSERA_TIMEOUT: the run ends with the bits of one that nothing disturbed. For ever: the other ranks end within "
           "the timeout and name the one that did not answer; woken up later, it ends too, every checkpoint is whole, and "
           "the run resumes to the right bits.")
TIMEOUT = 6  # seconds, TESSERA_TIMEOUT where somebody is stopped for ever
AFTER_TIMEOUT = 40  # seconds more: it is asked who is missing, and left without an answer, each with a deadline of its own
PAUSE, LONG_PAUSE = 2, 60  # seconds
MOMENTS = ["start", "train", "save"]
STEPS_AFTER = 3


@dataclass
class Case:
    number: int
    victim: str
    moment: str
    how_long: str  # for a while, for a minute, for ever

    def kind(self):
        return f"{self.victim}, {self.how_long}"

    def about(self):
        return f"{self.moment}: "


def all_cases():
    victims = ("rank 0", "another rank", "the launcher")
    cases = [(victim, moment, how_long) for how_long in ("for a while", "for ever") for victim in victims for moment in MOMENTS]
    cases += [("another rank", "train", "for a minute")]
    return [Case(number, *case) for number, case in enumerate(cases)]


class Stop:
    def __init__(self, storm, place, case):
        self.case = case
        self.draw = random.Random(f"{storm.seed}/stops/{case.number}")
        self.how = self.draw.choice([how for how in CONFIGURATIONS if how.ranks > 1])
        self.folder = place.folder / f"stops-{case.number}"
        self.output, self.swap = self.folder / "out", self.folder / "swap"
        self.swap.mkdir(parents=True)
        self.place, self.settings = place, self.how.settings(self.output, self.swap)

    def start(self, steps, timeout):
        return run_of(self.place, self.folder / "log", self.how.ranks, {**self.settings, "training.max_steps": steps},
                      env={**self.how.env, "TESSERA_TIMEOUT": timeout})

    def run(self):
        for_ever = self.case.how_long == "for ever"
        run = self.start(100_000, TIMEOUT if for_ever else 3 * LONG_PAUSE)
        stopped = None
        try:
            stopped = self.stop(run)
            if for_ever:
                self.for_ever(run, stopped)
            else:
                self.for_a_while(run, stopped)
        finally:
            if stopped and alive([stopped]):
                os.kill(stopped, signal.SIGCONT)
            if not run.ended() or alive(run.seen):
                run.kill_all()
        run.require_gone()
        run.require_plain_words()
        self.check_what_is_left()
        shutil.rmtree(self.folder)

    def stop(self, run):
        """The process that was stopped, at the moment that is asked for."""
        hold(run.wait_until(lambda: len(run.ranks()) == self.how.ranks, 30), f"no ranks\n{run.err()}")
        if self.case.moment == "start":
            run.pause(self.draw.uniform(0.1, 0.6))
        else:
            hold(run.wait_until(lambda: len(rows(self.output)) >= 3, 60), f"no three steps\n{run.err()}")
        if self.case.moment == "save":
            run.wait_until(lambda: any((self.output / "checkpoints").glob("*.saving")), 10)
        ranks = run.ranks()
        victim = {"rank 0": ranks[0], "another rank": ranks[self.how.ranks - 1], "the launcher": run.pid}[self.case.victim]
        os.kill(victim, signal.SIGSTOP)
        return victim

    def for_a_while(self, run, stopped):
        time.sleep(LONG_PAUSE if self.case.how_long == "for a minute" else PAUSE)
        hold(not run.ended(), f"it ended while {self.case.victim} was stopped for less than the timeout\n{run.err()[-2000:]}")
        os.kill(stopped, signal.SIGCONT)
        before = len(rows(self.output))
        hold(run.wait_until(lambda: len(rows(self.output)) > before, 30), f"no step after it was woken up\n{run.err()[-2000:]}")
        os.kill(run.pid, signal.SIGTERM)  # which a run answers with a checkpoint and exit code 0
        code = run.wait()
        hold(code == 0, f"exit code {code} after SIGTERM\n{run.err()[-2000:]}")

    def for_ever(self, run, stopped):
        others = [pid for pid in run.ranks().values() if pid != stopped]
        if self.case.victim == "the launcher":  # the ranks do without it
            time.sleep(TIMEOUT + 2)
            hold(sorted(alive(others)) == sorted(others), f"ranks ended because their launcher was stopped\n{run.err()[-2000:]}")
            for pid in others:
                os.kill(pid, signal.SIGKILL)
            os.kill(stopped, signal.SIGCONT)
            hold(run.wait() == 128 + signal.SIGKILL, f"exit code {run.wait()} after its ranks were killed\n{run.err()[-2000:]}")
            return
        end = time.monotonic() + TIMEOUT + AFTER_TIMEOUT
        while alive(others):
            hold(time.monotonic() < end, f"{TIMEOUT + AFTER_TIMEOUT} s later ranks still wait\n{run.err()[-3000:]}")
            time.sleep(0.02)
        if alive([stopped]):  # the launcher may have ended it
            os.kill(stopped, signal.SIGCONT)
        code = run.wait(30)
        hold(code == 1, f"exit code {code}\n{run.err()[-3000:]}")
        missing = 0 if self.case.victim == "rank 0" else self.how.ranks - 1
        said = re.search(rf"error: [^\n]*rank {missing}\b[^\n]*", run.err())
        hold(said, f"nobody says that rank {missing} did not answer\n{run.err()[-3000:]}")

    def check_what_is_left(self):
        require_whole(self.output)
        seen = rows(self.output)
        newest = tags(self.output)[0] if tags(self.output) else 0
        named = latest_step(self.output) or newest
        last = max(newest, max(seen, default=0)) + STEPS_AFTER
        run = self.start(last, 60)
        code = run.wait()
        hold(code == 0, f"it cannot be resumed: code {code}\n{run.err()[-2000:]}")
        hold(resumed_step(run.err()) == named, f"it resumed after step {resumed_step(run.err())} instead of {named}")
        require_clean(self.output, self.swap)
        alone = self.folder / "alone"
        undisturbed = {**self.settings, "output": alone, "training.max_steps": last, "training.save_steps": last}
        checked(*train_arguments(self.place.run_file, self.how.ranks, undisturbed), env=self.how.env)
        require_same_numbers(seen, rows(alone), "up to the stop")
        hold(rows(self.output) == rows(alone), "the rows of metrics.jsonl differ from those of a run that nothing disturbed")
        hold(contents(self.output / "export") == contents(alone / "export"), "the exported folders differ")


def run(storm, place, fraction):
    storm.begin("stops", PROMISE)

    def attempt(name, case):
        if fraction < 1 and case.how_long == "for a minute":
            return None
        Stop(storm, place, case).run()
        return ""

    storm.try_drawn({f"stops/{case.number}": case for case in all_cases()}, fraction, attempt)
