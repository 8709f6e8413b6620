"""Measured values as JSON lines: written while measuring (--json FILE), read back without measuring (--show FILE).

    {"setting": "2 ranks, fp32", "case": "Tessera, stage 1", "what": "step, s", "round": 3, "value": 1.25}
    {"setting": "2 ranks, fp32", "case": "DeepSpeed, stage 1", "failed": "DeepSpeed, stage 1, rank 0 ended before …"}
    {"skipped": "DeepSpeed", "why": "not installed (make peers)"}

Values of one setting and round stand beside each other: their ratio is taken.
"""

import json
import pathlib
import statistics
import sys

from harness.processes import Failure, exit_on_sigterm
from harness.rounds import spread


class Samples:
    def __init__(self, lines=(), file=None):
        self._file = file
        self._values = {}  # (setting, case, what) -> {round: value}
        self.failures = {}  # (setting, case) -> reason
        self.skipped = {}  # peer -> why
        for line in lines:
            self._keep(line)

    @classmethod
    def read(cls, path):
        return cls(map(json.loads, pathlib.Path(path).read_text().splitlines()))

    def _keep(self, line):
        if "skipped" in line:
            self.skipped[line["skipped"]] = line["why"]
        elif "failed" in line:
            self.failures[line["setting"], line["case"]] = line["failed"]
        else:
            self._values.setdefault((line["setting"], line["case"], line["what"]), {})[line["round"]] = line["value"]

    def _write(self, line):
        self._keep(line)
        if self._file:
            print(json.dumps(line, ensure_ascii=False), file=self._file, flush=True)

    def add(self, setting, case, values, round=0):
        """values: {what: value}"""
        for what, value in values.items():
            self._write({"setting": setting, "case": case, "what": what, "round": round, "value": value})

    def fail(self, setting, case, reason):
        print(f"failed: {case}: {reason}", file=sys.stderr, flush=True)
        self._write({"setting": setting, "case": case, "failed": str(reason)})

    def skip(self, peer, why):
        self._write({"skipped": peer, "why": why})

    def settings(self):
        return list(dict.fromkeys(setting for setting, _, _ in self._values))

    def cases(self, setting, what=None):
        return list(dict.fromkeys(case for own, case, each in self._values if own == setting and what in (None, each)))

    def values(self, setting, case, what):
        return list(self._values.get((setting, case, what), {}).values())

    def median(self, setting, case, what):
        values = self.values(setting, case, what)
        return statistics.median(values) if values else None

    def ratio(self, setting, what, case, to_case):
        """Spread of case / to_case over the rounds that both have; None where there is none."""
        above, below = (self._values.get((setting, case, what), {}) for case in (case, to_case))
        both = [above[each] / below[each] for each in above if each in below]
        return spread(both) if both else None


def run_program(options, measure, tables):
    """The exit code of a program of bench/: measures into samples, prints the tables of them; 1 where a case failed."""
    exit_on_sigterm()
    if options.show:
        print(tables(read_or_exit(options.show)))
        return 0
    with open(options.json or "/dev/null", "w") as file:
        samples = Samples(file=file)
        try:
            measure(options, samples)
        except Failure as failure:
            samples.fail("all", "all", failure)
    print(tables(samples))
    return 1 if samples.failures else 0


def read_or_exit(path):
    try:
        return Samples.read(path)
    except OSError as error:
        sys.exit(f"error: {error}")


def markdown(header, rows):
    """header: names; one that ends in ':' is of a column of numbers."""
    lines = [[name.removesuffix(":") for name in header], ["--:" if name.endswith(":") else ":--" for name in header],
             *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def endings(samples):
    """What failed and what was left out, as lines below the tables."""
    lines = [f"- Left out: {peer}: {why}." for peer, why in samples.skipped.items()]
    lines += [f"- FAILED: {setting}: {case}: {reason}" for (setting, case), reason in samples.failures.items()]
    return "\n".join(["\n", *lines]) if lines else ""


def number(value, digits=3):
    return "" if value is None else f"{value:.{digits}f}"


def ratio_cells(found):
    """The cells of columns 'ratio', 'quartiles'."""
    return (f"{found.middle:.2f}", f"{found.low:.2f} to {found.high:.2f}") if found else ("", "")
