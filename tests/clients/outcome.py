"""What a run of a client left: losses and norms of its steps, and what its weights are called and look like."""

import json
import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import torch


def history_of(output, printed, with_counts=True):
    """[(loss, gradient norm)] that on_cpu.py noted; or [(loss, learning rate)] of mmengine's logs; or the first of the Trainer's log, from the newest
    state that it saved, and what it evaluated at the end, `with_counts` or without; or [(perplexity, loss)] of the evaluations that the program printed."""
    noted = Path(output) / "steps.json"
    if noted.exists():
        return [tuple(row) for row in json.loads(noted.read_text())]
    scalars = [json.loads(line) for path in sorted(Path(output).glob("**/vis_data/scalars.json")) for line in path.read_text().splitlines()]
    if scalars:
        return [(row["loss"], row["lr"]) for row in scalars if "loss" in row]
    states = sorted(Path(output).glob("**/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    if not states:
        evaluations = re.findall(r"epoch \d+: perplexity: ([0-9.e+-]+) eval_loss: ([0-9.e+-]+)|"
                                 r"epoch=\d+: train_ppl=tensor\(([0-9.e+-]+)\) train_epoch_loss=tensor\(([0-9.e+-]+)\)", printed)
        return [tuple(map(float, filter(None, row))) for row in dict.fromkeys(evaluations)]
    rows = json.loads(states[-1].read_text())["log_history"]
    steps = [(row["loss"], row.get("grad_norm")) for row in rows if "loss" in row]
    return [*steps, *_results_of(Path(output) / "all_results.json", with_counts)]


def _results_of(path, with_counts):
    """(value,) of each metric, without times and sizes. Counts are shares of right answers: in 16 bits two logits may round alike, and one answer of a
    few hundred differs where losses do not."""
    results = json.loads(path.read_text()) if path.exists() else {}
    left_out = r"runtime|_per_second|samples|epoch|flos|bytes" + ("" if with_counts else "|accuracy|f1")
    named = {name: value for name, value in results.items() if not re.search(left_out, name)}
    return [(value,) for _, value in sorted(named.items())]


def weights_of(output):
    """{name: [dtype, shape]} of all safetensors files beside the final model's configuration, and of a pytorch_model.bin."""
    found = {}
    for path in sorted(Path(output).glob("*.safetensors")):
        with open(path, "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        found.update({name: [entry["dtype"], entry["shape"]] for name, entry in header.items() if name != "__metadata__"})
    for path in Path(output).glob("pytorch_model.bin"):
        try:
            found.update({name: [str(value.dtype), list(value.shape)] for name, value in torch.load(path, map_location="cpu").items()})
        except RuntimeError:
            found[path.name] = "cannot be loaded"
    return found


def tests_of(output):
    """{test: whether it passed} of the report that own_tests.py wrote, without those that were skipped."""
    report = Path(output) / "tests.xml"
    tests = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ()
    ends = {f"{test.get('classname')}.{test.get('name')}": {end.tag for end in test} for test in tests}
    return {name: not tags & {"failure", "error"} for name, tags in ends.items() if "skipped" not in tags}


def reason_in(text):
    """The line of a failed run that says most: that of the last exception."""
    lines = [line for line in text.splitlines() if re.search(r"(Error|Exception|error):? |^terminate called", line) and "ChildFailedError" not in line]
    return (lines or text.splitlines() or ["nothing was printed"])[-1].strip()[:300]


def largest_difference(ours, theirs, at_least):
    """Relative, or to `at_least` of smaller numbers, over all pairs."""
    pairs = [(a, b) for row, other in zip(ours, theirs) for a, b in zip(row, other) if a is not None and b is not None]
    return max((abs(a - b) / max(abs(b), at_least) for a, b in pairs), default=float("inf"))
