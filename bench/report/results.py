"""bench/results.md and results.svg, made of what the parts wrote; measures nothing."""

import json
import subprocess
import sys

from harness import places
from harness.processes import Failure, run
from harness.rounds import spread
from harness.samples import Samples
from harness.training_cases import all_cases
from report import gap, scaling
from report.parts import PARTS

ABOUT = "about.json"  # in the folder: the machine, and the options that it was measured with
PLOTTED = "step, s"
HEAD = """Made by `make bench` (`bench/run`); docs/performance.md explains the figures. A ratio is the median of those within a round,
in which all take turns, with their quartiles; *to the bound* is to ranks that do the same and do not communicate."""
QUICK = "**A quick run: it shows that all works, its figures mean nothing.**"


def write(folder, output):
    """folder: what bench/run wrote; output: results.md, and results.svg beside it. Returns the paths."""
    files = {part.name: folder / f"{part.name}.jsonl" for part in PARTS}
    samples_of = {name: Samples.read(path) for name, path in files.items() if path.exists()}
    if not samples_of:
        raise Failure(f"nothing is measured in {folder}")
    about = json.loads((folder / ABOUT).read_text())
    svg = output.with_suffix(".svg")
    missing = plot(samples_of, svg)
    text = ["# Results", HEAD, "", *(f"- {what}: {value}" for what, value in about["machine"].items()), "",
            *([QUICK, ""] if about["options"]["quick"] else []), missing or f"![seconds a step]({svg.name})", "",
            "## The gap to the bound", gap.table(samples_of)]
    if speeds := scaling.table(samples_of):
        text += ["", "## Scaling", "Tokens/s of all ranks, and in brackets the step to the bound; more ranks than cores share these.", "",
                 speeds]
    for part in PARTS:
        text += ["", f"## {part.title}", *section(part, folder, about["options"])]
    output.write_text("\n".join(text) + "\n")
    return [output] if missing else [output, svg]


def section(part, folder, options):
    measured, failed = (folder / f"{part.name}.{kind}" for kind in ("jsonl", "failed"))
    if failed.exists():
        return [f"FAILED: {failed.read_text()}"]
    if not measured.exists():
        return ["Not measured in this run."]
    command = [sys.executable, places.BENCH / part.program, "--show", measured]
    return [f"`bench/{' '.join(map(str, part.command(options['quick'], options['rounds'])))}`", "",
            *run(f"bench/{part.program} --show", command, places.thread_environment())]


def plot(samples_of, svg):
    """Why there is no plot; None where there is one."""
    python = next((each for each in (places.PEERS_PYTHON, places.OUR_PYTHON) if places.has_module(each, "matplotlib")), None)
    if python is None:
        return f"No plot: matplotlib is {places.NOT_INSTALLED}."
    panels = {}
    for name, samples in samples_of.items():
        if name == "memory":
            continue  # its steps are not beside anybody's
        for setting in samples.settings():
            measured = samples.cases(setting, PLOTTED)
            cases = {name: spread(samples.values(setting, name, PLOTTED)) for name in (case.name for case in all_cases())
                     if name in measured}
            if cases:
                panels[setting] = cases
    if not panels:
        return "No plot: no training step was measured."
    done = subprocess.run([python, places.BENCH / "report/plot.py", svg], input=json.dumps(panels), text=True, capture_output=True,
                          timeout=120)
    return None if done.returncode == 0 else f"No plot: {done.stderr.strip().splitlines()[-1]}"
