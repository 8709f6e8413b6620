"""SIGKILL, at any moment, of a rank, of several, of the launcher, of all: whatever is killed, nothing is lost, left or wrong.

A chain is one output in which run after run is killed: each start with `--resume auto` is the check of the kill before it and the
object of the next one. In the end the chain is let finish, and each number that any of its runs ever wrote is compared with those
of a run of the same configuration that nothing disturbed.
"""

import json
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass, field

from outcomes import Broken, hold
from storm_runs import (Running, checked, latest_step, require_clean, require_empty, require_same_numbers,
                        require_whole, resumed_step, rows, run_of, tags, train_arguments)

PROMISE = ("After each SIGKILL: no process and nothing in /dev/shm is left, nor bytes where state is offloaded to; every "
           "published checkpoint verifies, the newest is no older than before; the next start resumes from it. A chain of "
           "them ends with the bits of a run that nothing disturbed, and without any file of a run that was killed.")
KILLS_OF_A_CHAIN = 20
PLACES = 60  # where a test can kill a process (tessera/base/fault_point.h): what three saves of a rank come past
LAST_STEPS = 3  # that a chain takes in peace
EXPORT_PLACES = 12


@dataclass
class Configuration:
    name: str
    ranks: int
    stage: int
    offload: str = ""  # of optimizer and, at stage 3, of parameters: cpu, nvme
    async_save: bool = True
    env: dict = field(default_factory=dict)

    def settings(self, output, swap):
        zero = {"stage": self.stage}
        if self.offload:
            device = {"device": self.offload} | ({"nvme_path": str(swap)} if self.offload == "nvme" else {})
            zero["offload_optimizer"] = device
            if self.stage == 3:
                zero["offload_param"] = device
        return {"output": output, "deepspeed.zero_optimization": json.dumps(zero),
                "training.async_save": str(self.async_save).lower()}


CONFIGURATIONS = [
    Configuration("stage 3, 2 ranks", 2, 3),
    Configuration("stage 2, 2 ranks, NVMe", 2, 2, "nvme"),
    Configuration("stage 1, 3 ranks, saved synchronously", 3, 1, async_save=False),
    Configuration("stage 0, 1 rank", 1, 0),
    Configuration("stage 3, 2 ranks, NVMe", 2, 3, "nvme"),
    Configuration("stage 2, 2 ranks, CPU offload", 2, 2, "cpu"),
    Configuration("stage 0, 2 ranks", 2, 0),
    Configuration("stage 3, 2 ranks, NVMe without io_uring", 2, 3, "nvme", env={"TESSERA_IO": "threads"}),
    Configuration("stage 1, 2 ranks", 2, 1),
    Configuration("stage 3, 3 ranks", 3, 3),
    Configuration("stage 2, 2 ranks, saved synchronously", 2, 2, async_save=False),
    Configuration("stage 3, 1 rank, CPU offload", 1, 3, "cpu"),
]
MOMENTS = ["start", "train", "save", "place", "export"]
OFTEN = [4, 2, 6, 6, 2]


class Chain:
    def __init__(self, storm, place, number, kills):
        self.storm, self.place, self.kills = storm, place, kills
        self.case = f"kills/{number}"
        self.draw = random.Random(f"{storm.seed}/{self.case}")
        self.how = CONFIGURATIONS[number % len(CONFIGURATIONS)]
        self.folder = place.folder / f"kills-{number}"
        self.output, self.swap = self.folder / "out", self.folder / "swap"
        self.swap.mkdir(parents=True)
        self.settings = self.how.settings(self.output, self.swap)
        self.seen = {}  # each row of metrics that any run wrote
        self.newest = 0  # step of the newest checkpoint that was whole
        self.expected = 0  # step from which the next start must go on
        self.start_seconds = 1.0  # until the first step, about
        self.starts = 0

    def run(self):
        """Whether all of it held; after the first failure of a chain what follows means nothing."""
        for number in range(self.kills):
            if not self.storm.wanted(self.case):
                break
            moment = self.draw.choices(MOMENTS, OFTEN)[0]
            if moment in ("save", "export") and self.newest == 0:
                moment = "train"
            kind = f"{moment}, {self.how.name}"
            try:
                killed = self.kill_export() if moment == "export" else self.kill_training(moment)
                note = self.check_what_is_left()
            except AssertionError as failure:
                self.storm.add(self.case, kind, f"kill {number} of the chain: {failure}")
                return False
            self.storm.add(self.case, f"{moment}: {killed}", note=note)
        try:
            self.finish()
        except AssertionError as failure:
            self.storm.add(self.case, f"the end of a chain, {self.how.name}", str(failure))
            return False
        shutil.rmtree(self.folder)
        return True

    def start(self, settings=(), env=None):
        self.starts += 1
        return run_of(self.place, self.folder / "logs" / str(self.starts), self.how.ranks, {**self.settings, **dict(settings)},
                      env={**self.how.env, **(env or {})})

    def victims(self, ranks):
        """(what is said of them, their ranks; the launcher is -1)."""
        if self.how.ranks == 1:
            return "the only rank", [0]
        what = self.draw.choice(["one rank", "one rank", "several ranks", "the launcher", "all"])
        everyone = list(range(self.how.ranks))
        chosen = {"one rank": [self.draw.choice(everyone)], "the launcher": [-1], "all": [-1, *everyone],
                  "several ranks": self.draw.sample(everyone, max(2, self.how.ranks - 1))}[what]
        return what, chosen

    def kill_training(self, moment):
        """One start, and its end by SIGKILL; returns what was killed."""
        what, chosen = self.victims(self.how.ranks)
        env = {}
        if moment == "place":
            what, whose = self.draw.choice([("one rank", str(self.draw.randrange(self.how.ranks))), ("all ranks", "*")])
            env["TESSERA_FAULT"] = f"{whose}:{self.draw.randint(1, PLACES)}"
        run = self.start(env=env)
        try:
            self.wait_for(run, moment)
            if run.ended() and moment != "place":
                raise Broken(f"it ended before it was killed, with code {run.wait()}\n{run.err()[-2000:]}")
            ranks = run.ranks()
            self.seen_rows()
            for victim in chosen if not run.ended() else ():
                pid = run.pid if victim < 0 else ranks.get(victim, run.pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            code = run.wait()
            run.require_gone()
            hold(code in (-signal.SIGKILL, 128 + signal.SIGKILL), f"exit code {code} after SIGKILL of {what}\n{run.err()[-2000:]}")
            run.require_plain_words()
            self.check_resumed(run)
        finally:
            if not run.ended():
                run.kill_all()
        self.seen_rows()
        return what

    def wait_for(self, run, moment):
        if moment == "start":
            run.pause(self.draw.uniform(0, 1.1 * self.start_seconds))
            return
        began = time.monotonic()
        run.wait_until(lambda: resumed_step(run.err()) is not None, 60)
        at_start = self.size_of_metrics()  # rows of steps that are done again are cut off
        if run.wait_until(lambda: self.size_of_metrics() != at_start, 60):
            self.start_seconds = time.monotonic() - began
        if moment == "place":
            run.pause(6)
        elif moment == "save":
            run.wait_until(lambda: any((self.output / "checkpoints").glob("*.saving")), 10)
            run.pause(self.draw.uniform(0, 0.02))
        else:
            run.pause(self.draw.uniform(0, 0.15))

    def size_of_metrics(self):
        path = self.output / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def seen_rows(self):
        for step, numbers in rows(self.output).items():
            hold(self.seen.setdefault(step, numbers) == numbers, f"step {step} has {numbers}, but {self.seen[step]} before a kill")

    def check_resumed(self, run):
        """A start that came that far went on from the newest whole checkpoint."""
        step = resumed_step(run.err())
        if step is not None:
            hold(step == self.expected, f"it resumed after step {step} instead of {self.expected}\n{run.err()[-2000:]}")

    def check_what_is_left(self):
        """Returns what is worth a note."""
        require_empty(self.swap)
        whole, named = tags(self.output), latest_step(self.output)
        if not whole:
            hold(named == 0 and self.newest == 0, f"no checkpoint is left; the newest was of step {self.newest}")
            return ""
        hold(whole[0] >= self.newest, f"the newest checkpoint is of step {whole[0]}; before it was of {self.newest}")
        hold(named in whole or (named == 0 and self.newest == 0), f"latest names step {named}, but there are {whole}")
        checked("checkpoint", "verify", self.output / "checkpoints" / f"global_step{whole[0]}")
        self.newest = whole[0]
        self.expected = named or whole[0]
        if named == whole[0]:
            return ""
        hold(len(whole) > 1 and named == whole[1] or named == 0, f"latest names step {named}, of {whole}")
        return "between the name of a checkpoint and `latest`, which named the one before: resumed from that one"

    def kill_export(self):
        """`tessera checkpoint export` over an earlier export: that one, or the new one, is there whole."""
        exported, checkpoint = self.folder / "export", self.output / "checkpoints" / f"global_step{self.newest}"
        before = contents(exported)
        fresh = self.folder / "fresh"
        checked("checkpoint", "export", checkpoint, "--to", fresh)
        whole = contents(fresh)
        shutil.rmtree(fresh)
        self.starts += 1
        at_place = self.draw.random() < 0.5
        env = {"TESSERA_FAULT": f"0:{self.draw.randint(1, EXPORT_PLACES)}"} if at_place else {}
        run = Running(self.folder / "logs" / str(self.starts), ["checkpoint", "export", checkpoint, "--to", exported], env)
        if not at_place:
            run.pause(self.draw.uniform(0, 0.5))
            run.process.kill()
        code = run.wait()
        hold(code in (0, -signal.SIGKILL), f"export: exit code {code}\n{run.err()[-2000:]}")
        hold(contents(exported) in (before, whole), "an export that was killed left neither the earlier export nor a whole one")
        checked("checkpoint", "export", checkpoint, "--to", exported)
        hold(contents(exported) == whole, "an export after one that was killed is not as one into a new folder")
        left = [path.name for path in self.folder.iterdir() if path.name.startswith("export.")]
        hold(not left, f"left over by an export that was killed: {left}")
        return "export"

    def finish(self):
        last = max(self.newest, max(self.seen, default=0)) + LAST_STEPS
        self.settings["training.max_steps"] = last
        run = self.start()
        code = run.wait()
        hold(code == 0, f"the last run of the chain ended with code {code}\n{run.err()[-2000:]}")
        self.check_resumed(run)
        run.require_gone()
        require_clean(self.output, self.swap)
        require_whole(self.output)
        self.seen_rows()
        alone = self.folder / "alone"
        undisturbed = {**self.settings, "output": alone, "training.save_steps": last}
        checked(*train_arguments(self.place.run_file, self.how.ranks, undisturbed), env=self.how.env)
        reference = rows(alone)
        hold(sorted(rows(self.output)) == list(range(1, last + 1)), f"metrics.jsonl has steps {sorted(rows(self.output))}")
        require_same_numbers(self.seen, reference, "after kills")
        hold(contents(self.output / "export") == contents(alone / "export"), "the exported folders differ")


def contents(folder):
    """{name of a file: its bytes}"""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.exists() else {}


def run(storm, place, kills, first_chain=0):
    storm.begin("kills", PROMISE)
    done, number = 0, first_chain
    while done < kills:
        if storm.case and not storm.case.startswith("kills/"):
            return
        if storm.case:
            number = int(storm.case.split("/")[1])
        count = min(KILLS_OF_A_CHAIN, kills - done)
        if not storm.wanted(f"kills/{number}"):
            return
        Chain(storm, place, number, count).run()
        done += count
        number += 1
        if storm.case:
            return
