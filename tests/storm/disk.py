"""A disk that is full, fails, does half of what was asked, or is slow, through a preloaded library (io_faults.cpp).

Every kind of call on every kind of file that a run reads or writes, at a moment drawn by the seed, once or from then on.
What is read and written goes through TESSERA_IO=threads then, because nothing preloaded sees io_uring; the other calls are
tried with both.
"""

import random
import shutil
from dataclasses import dataclass

from kills import Configuration, contents
from outcomes import hold
from storm_runs import (TESSERA, checked, require_clean, require_same_numbers, require_whole, resumed_step, rows, run_of, tags,
                        train_arguments)

PROMISE = ("A run that continues after step 4 to step 8, in which the calls of one kind on the files of one folder fail, "
           "fall short or are slow from a drawn moment on: it goes on and its numbers are right, or it ends with exit code 2 "
           "and one message that says what the disk said; the earlier checkpoints are untouched, none is taken for whole "
           "that is not, and without the fault it ends with the right bits.")
LIBRARY = TESSERA.parent / "tests" / "libio_faults.so"
RANKS = 2
STEPS_BEFORE, STEPS = 4, 8
HOW = Configuration("stage 3, 2 ranks, NVMe", RANKS, 3, "nvme")
WRITING = {"open": ["ENOSPC", "EIO"], "write": ["ENOSPC", "EIO", "short", "slow"], "fsync": ["EIO", "ENOSPC", "slow"],
           "rename": ["ENOSPC", "EIO"], "truncate": ["EIO"], "allocate": ["ENOSPC", "EIO"], "mkdir": ["ENOSPC", "EIO"]}
READING = {"open": ["EIO"], "read": ["EIO", "short", "slow"]}
SAID = {"ENOSPC": "No space left on device", "EIO": "Input/output error"}


@dataclass
class Case:
    area: str
    call: str
    what: str
    for_ever: bool

    def kind(self):
        return f"{self.area}: {self.call}, {self.what}{', from then on' if self.for_ever else ''}"

    def about(self):
        return ""


def areas(place, output, swap):
    """{what a run does there: (beginning of the paths, kinds of call)}."""
    return {"saving": (output / "checkpoints", WRITING), "loading": (output / "checkpoints", READING),
            "reading data": (place.texts, READING), "reading the model": (place.model, READING),
            "metrics": (output / "metrics.jsonl", {**READING, **{call: WRITING[call] for call in ("write", "fsync", "rename")}}),
            "offloading": (swap, {**READING, **{call: WRITING[call] for call in ("open", "write", "allocate")}}),
            "exporting": (output / "export", WRITING)}


class Disk:
    def __init__(self, storm, place):
        self.storm, self.place = storm, place
        self.folder = place.folder / "disk"
        self.base, self.whole, self.swap = self.folder / "base", self.folder / "whole", self.folder / "swap"
        self.swap.mkdir(parents=True)
        self.counts = {}
        settings = {"training.save_steps": 2, "training.keep_last": 0}
        self.settings = lambda output, steps: {**HOW.settings(output, self.swap), **settings, "training.max_steps": steps}
        checked(*train_arguments(place.run_file, RANKS, self.settings(self.base, STEPS_BEFORE)))
        checked(*train_arguments(place.run_file, RANKS, self.settings(self.whole, STEPS)))
        self.reference = rows(self.whole)
        self.exported = contents(self.whole / "export")

    def cases(self):
        for area, (_, calls) in areas(self.place, self.base, self.swap).items():
            for call, faults in calls.items():
                for what in faults:
                    yield Case(area, call, what, for_ever=False)
                    if what != "slow":
                        yield Case(area, call, what, for_ever=True)

    def count(self, area, output, under):
        """How many calls of each kind a rank makes there: {(rank, kind): n}."""
        if area not in self.counts:
            files = self.folder / f"count-{len(self.counts)}-"
            shutil.copytree(self.base, output)
            run = run_of(self.place, self.folder / "counting", RANKS, self.settings(output, STEPS),
                         env={"LD_PRELOAD": LIBRARY, "TESSERA_IO": "threads", "STORM_UNDER": under, "STORM_COUNT": files})
            hold(run.wait() == 0, f"a run with nothing but a library preloaded failed\n{run.err()[-2000:]}")
            shutil.rmtree(output)
            found = {}
            for path in self.folder.glob(f"{files.name}*"):
                rank, kind = path.name.removeprefix(files.name).split(".")
                found[int(rank), kind] = int(path.read_text())
            self.counts[area] = found
        return self.counts[area]

    def try_case(self, name, case):
        draw = random.Random(f"{self.storm.seed}/{name}")
        output = self.folder / "out"
        shutil.rmtree(output, ignore_errors=True)
        under = areas(self.place, output, self.swap)[case.area][0]
        counts = self.count(case.area, output, under)
        who = [rank for rank in range(RANKS) if counts.get((rank, case.call))]
        if not who:
            return None  # there is no such call
        rank = draw.choice(who)
        first = draw.randint(1, counts[rank, case.call])
        env = {"LD_PRELOAD": LIBRARY, "STORM_UNDER": under, "STORM_CALLS": case.call, "STORM_WITH": case.what, "STORM_RANK": rank,
               "STORM_FIRST": first, "STORM_TIMES": 0 if case.for_ever else 5 if case.what == "slow" else 1}
        if case.call in ("read", "write") or draw.random() < 0.5:
            env["TESSERA_IO"] = "threads"
        shutil.copytree(self.base, output)
        run = run_of(self.place, self.folder / "log", RANKS, self.settings(output, STEPS), env=env)
        try:
            code = run.wait()
        finally:
            if not run.ended():
                run.kill_all()
        said = f"\nrank {rank}, {case.call} number {first}: exit code {code}\n{run.err()[-3000:]}"
        self.check_after(case, run, code, output, said)
        return "" if code == 0 else "ended with exit code 2"

    def check_after(self, case, run, code, output, said):
        run.require_gone()
        hold(code in (0, 2), f"exit code {code}{said}")
        run.require_plain_words()
        for step in (STEPS_BEFORE // 2, STEPS_BEFORE):
            name = f"checkpoints/global_step{step}"
            hold(contents(output / name) == contents(self.base / name), f"{name} was changed{said}")
        require_whole(output)
        if code == 0:
            found = rows(output)
            missing = sorted(set(self.reference) - set(found))
            hold(not missing or "there was no room for them" in run.err(),
                 f"metrics.jsonl lacks steps {missing}, and nothing says so{said}")
            require_same_numbers(found, self.reference, "beside a failing disk" + said)
            hold(tags(output)[0] == STEPS, f"the last checkpoint is missing{said}")
        else:
            hold("error: " in run.err() and "where:" in run.err(), f"no message{said}")
            hold(case.what not in SAID or SAID[case.what] in run.err(), f"nobody says '{SAID.get(case.what)}'{said}")
            again = run_of(self.place, self.folder / "log-again", RANKS, self.settings(output, STEPS))
            hold(again.wait() == 0, f"it cannot be resumed: {again.err()[-2000:]}{said}")
            hold(resumed_step(again.err()) >= STEPS_BEFORE, f"it was resumed from step {resumed_step(again.err())}{said}")
            found = rows(output)
            hold(sorted(found) == sorted(self.reference), f"after it was resumed, metrics.jsonl has steps {sorted(found)}{said}")
            require_same_numbers(found, self.reference, "resumed after a disk that failed" + said)
        hold(contents(output / "export") == self.exported, f"the exported folder differs{said}")
        require_clean(output, self.swap)


def run(storm, place, fraction):
    storm.begin("disk", PROMISE)
    disk = Disk(storm, place)
    cases = {f"disk/{number}": case for number, case in enumerate(disk.cases())}
    storm.try_drawn(cases, fraction, disk.try_case)
