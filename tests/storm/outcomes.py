"""What became of each fault of a storm, and the report of all of them."""

import datetime
import os
import platform
import random
import time
from dataclasses import dataclass, field

SAID_EVERY = 20  # outcomes, so that one sees that it goes on
WIDEST = 160  # characters of a failure in the table; the log has all of it


class Broken(AssertionError):
    """A promise that did not hold."""


def hold(condition, what):
    if not condition:
        raise Broken(what)


def machine():
    """Lines of a report."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return [f"- date: {datetime.date.today()}", f"- machine: {os.cpu_count()} cores, {memory} GiB, Linux {platform.release()}"]


@dataclass
class Outcome:
    case: str  # `tests/storm/run --seed … --case` repeats it
    kind: str  # a row of the table
    failure: str = ""  # empty: it held
    note: str = ""


@dataclass
class Part:
    name: str
    promise: str
    outcomes: list = field(default_factory=list)
    seconds: float = 0
    cut_short: bool = False  # the time was over
    figures: list = field(default_factory=list)  # lines of the report

    def held(self):
        return sum(not outcome.failure for outcome in self.outcomes)

    def failed(self):
        return len(self.outcomes) - self.held()


class Storm:
    """Collects outcomes; knows the seed, which cases are asked for, and when the time is over."""

    def __init__(self, seed, minutes, case="", say=print):
        self.seed, self.case, self.say = seed, case, say
        self.end = time.monotonic() + 60 * minutes
        self.parts = []

    def begin(self, name, promise):
        self.parts.append(Part(name, promise))
        self.begun = time.monotonic()

    def drawn(self, cases, fraction):
        """That fraction of the cases, in their order; the one that is asked for."""
        if self.case:
            return [self.case]
        chosen = random.Random(self.seed).sample(range(len(cases)), max(1, round(fraction * len(cases))))
        return [cases[number] for number in sorted(chosen)]

    def try_drawn(self, cases, fraction, attempt):
        """That fraction of {name: case}. attempt(name, case) returns a note, or None where there was nothing to try."""
        for name in self.drawn(list(cases), fraction):
            if not self.wanted(name):
                continue
            case = cases[name]
            try:
                note = attempt(name, case)
            except AssertionError as failure:
                self.add(name, case.kind(), f"{case.about()}{failure}")
                continue
            if note is not None:
                self.add(name, case.kind(), note=note)

    def wanted(self, case):
        if self.case and case != self.case:
            return False
        if time.monotonic() < self.end:
            return True
        self.parts[-1].cut_short = True
        return False

    def add(self, case, kind, failure="", note=""):
        part = self.parts[-1]
        part.outcomes.append(Outcome(case, kind, failure, note))
        part.seconds = time.monotonic() - self.begun
        if len(part.outcomes) % SAID_EVERY == 0:
            self.say(f"{part.name}: {len(part.outcomes)} tried, {part.failed()} failed, {part.seconds:.0f} s")
        if failure:
            self.say(f"FAILED {case} ({kind}): {failure}\n    again: {self.again(case)}")

    def again(self, case):
        return f"tests/storm/run --seed {self.seed} --case {case}"

    def failed(self):
        return sum(part.failed() for part in self.parts)

    def last_line(self):
        tried = sum(len(part.outcomes) for part in self.parts)
        return f"storm: {tried} faults, {tried - self.failed()} held, {self.failed()} failed"

    def markdown(self):
        lines = ["# Results",
                 "Made by `make storm` (`tests/storm/run`). A row is a kind of fault; it held where the promise above it did.",
                 "",
                 *machine(), f"- seed: {self.seed}", f"- **{self.last_line()}**"]
        for part in self.parts:
            lines += ["", f"## {part.name.capitalize()}", part.promise, "",
                      "| fault | tried | held | failed |", "| :-- | --: | --: | --: |"]
            for kind in dict.fromkeys(outcome.kind for outcome in part.outcomes):
                of_kind = [outcome for outcome in part.outcomes if outcome.kind == kind]
                failed = sum(bool(outcome.failure) for outcome in of_kind)
                lines.append(f"| {kind} | {len(of_kind)} | {len(of_kind) - failed} | {failed} |")
            lines.append(f"| **all** | {len(part.outcomes)} | {part.held()} | {part.failed()} |")
            cut_short = " The time was over before all were tried." if part.cut_short else ""
            lines += ["", f"It took {part.seconds:.0f} s.{cut_short}"]
            lines += [f"- {figure}" for figure in part.figures]
            notes = [outcome.note for outcome in part.outcomes if outcome.note]
            for note in dict.fromkeys(notes):
                lines.append(f"- {note}: {notes.count(note)} times")
            for outcome in part.outcomes:
                if outcome.failure:
                    first = " ".join(outcome.failure.split())[:WIDEST]
                    lines.append(f"- **failed** {outcome.case} ({outcome.kind}): {first}; again: `{self.again(outcome.case)}`")
        return "\n".join(lines) + "\n"
