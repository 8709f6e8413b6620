"""docs/cpp-guide.md, done as it says: its files into an empty folder, its commands in order, against an installation that was
moved. What it shows as output is what comes out, up to the digits that another CPU rounds otherwise."""

import re

import pytest
from installed_tree import ROOT, run

GUIDE = (ROOT / "docs" / "cpp-guide.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
FILES = {"cmake": "#", "cpp": "//", "json": "//"}  # how a file of that kind begins the comment that names it
pytestmark = pytest.mark.sample()  # minutes: it builds four programs
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?")


@pytest.fixture(scope="module")
def outputs(moved, tmp_path_factory):
    """What each block of commands printed, with what the page says that it prints ("" where it says nothing)."""
    folder = tmp_path_factory.mktemp("guide")
    for kind, text in BLOCKS:
        if kind in FILES:
            name = re.match(rf"{FILES[kind]} (\S+)\n", text).group(1)
            (folder / name).write_text(text)
    done = []
    for index, (kind, commands) in enumerate(BLOCKS):
        if kind == "sh":
            printed = run("bash", "-e", "-c", commands.replace("/opt/tessera", str(moved)), cwd=folder)
            shown = BLOCKS[index + 1] if index + 1 < len(BLOCKS) else ("", "")
            done.append((printed, shown[1] if shown[0] == "text" else ""))
    return done


def lines_with(printed, *beginnings):
    lines = [line.removeprefix("[rank 0] ") for line in printed.splitlines()]  # which `tessera launch` puts before them
    return [line for line in lines if line.startswith(beginnings)]


def test_each_command_prints_what_the_page_shows(outputs):
    assert len([1 for _, shown in outputs if shown]) == 4
    for printed, shown in outputs:
        beginnings = ("step", "resumed", "done", "held-out", "trained")
        expected = lines_with(shown, *beginnings)
        assert [NUMBER.sub("#", line) for line in lines_with(printed, *beginnings)] == [NUMBER.sub("#", line) for line in expected], printed
        numbers = [float(number) for line in lines_with(printed, *beginnings) for number in NUMBER.findall(line)]
        assert numbers == pytest.approx([float(number) for line in expected for number in NUMBER.findall(line)], rel=0.02), printed


def losses(printed):
    return [float(value) for value in re.findall(r"step \d+  loss (\S+)", printed)]


def held_out(printed):
    return float(re.findall(r"held-out loss (\S+)", printed)[-1])  # the trainer has told others before


def test_the_loss_falls_and_goes_on_falling_on_another_number_of_ranks(outputs):
    first, resumed = [printed for printed, shown in outputs if "done at step" in shown]
    assert losses(first)[0] > losses(first)[-1] > losses(resumed)[-1]
    assert held_out(resumed) < held_out(first)


def test_the_weights_that_were_saved_give_the_loss_of_training(outputs):
    """But for bf16: 8 bits of mantissa in each layer's output."""
    resumed, used = [printed for printed, _ in outputs][-3:-1]
    assert held_out(used) == pytest.approx(held_out(resumed), rel=2**-8)
