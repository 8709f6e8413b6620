"""bench/run on the smallest model: everybody does the same work, the tables are there, what is missing or fails is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import places

RUN = places.BENCH / "run"


def bench(program, *words, **environment):
    return subprocess.run([sys.executable, places.BENCH / program, *map(str, words)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder with results.md; nobody has installed DeepSpeed."""
    if not (places.BUILD / "python").exists():
        pytest.skip("the Python package is not built")
    folder = tmp_path_factory.mktemp("bench")
    done = bench("run", "--quick", "--only", "training-fp32", "--folder", folder / "values", "--output", folder / "results.md",
                 TESSERA_PEERS=str(folder / "none"))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.sample()
def test_the_losses_of_all_frameworks_agree(measured):
    lines = [json.loads(line) for line in (measured / "values" / "training-fp32.jsonl").read_text().splitlines()]
    for what, cases in (("first loss", {"no communication", "Tessera, stage 0", "torch DDP", "Tessera, stage 3", "FSDP2, stage 3"}),
                        ("last loss", {"Tessera, stage 0", "torch DDP", "Tessera, stage 3", "FSDP2, stage 3"})):
        losses = {line["case"]: line["value"] for line in lines if line.get("what") == what}
        assert set(losses) == cases
        assert max(losses.values()) / min(losses.values()) - 1 < 1e-4  # fp32, three steps
    first, last = ({line["case"]: line["value"] for line in lines if line.get("what") == what}["torch DDP"]
                   for what in ("first loss", "last loss"))
    assert last < first  # it learns


def test_results_have_the_tables_and_say_who_is_missing(measured):
    text = (measured / "results.md").read_text()
    assert "## The gap to the bound\n| ratio | wanted |" in text
    assert "| step, fp32, micro batch 4, stage 3, from Python | at most 1.05 |" in text
    for case in ("no communication", "Tessera, stage 0", "torch DDP", "FSDP2, stage 3"):
        assert f"\n| {case} | " in text
    assert "- Left out: DeepSpeed: not installed (make peers)." in text
    assert "## Checkpoints\nNot measured in this run." in text


def test_the_report_is_made_anew_without_measuring(measured):
    again = measured / "again.md"
    done = bench("run", "--report", "--folder", measured / "values", "--output", again, TESSERA_PEERS=str(measured / "none"))
    assert done.returncode == 0, done.stderr
    assert again.read_text() == (measured / "results.md").read_text()


def test_a_stopped_run_goes_on(measured):
    done = bench("run", "--quick", "--only", "training-fp32", "--resume", "--folder", measured / "values", "--output",
                 measured / "resumed.md", TESSERA_PEERS=str(measured / "none"))
    assert done.returncode == 0 and "training-fp32: measured before" in done.stdout
    done = bench("run", "--resume", "--folder", measured / "values", "--output", measured / "resumed.md")
    assert done.returncode == 1 and "was measured with different options" in done.stderr  # not --quick


def test_what_fails_is_told_and_the_exit_code_is_1(tmp_path):
    done = bench("run", "--quick", "--only", "collectives", "--folder", tmp_path / "values", "--output", tmp_path / "results.md",
                 TESSERA_BUILD=str(tmp_path / "nothing-built"))
    assert done.returncode == 1
    assert "FAILED" in (tmp_path / "results.md").read_text()
    assert "No module named 'tessera'" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize("program, words, said", [
    ("run", ["--only", "nonsense"], "error: there is no part 'nonsense': training-fp32, "),
    ("run", ["--rounds", "0"], "error: --rounds must be at least 1"),
    ("run", ["--resume", "--report"], "error: argument --report: not allowed with argument --resume"),
    ("training", ["--frameworks", "horovod"], "error: unknown framework 'horovod': "),
    ("training", ["--model", "bart"], "error: argument --model: invalid choice: 'bart'"),
])
def test_a_bad_option_is_one_error(program, words, said):
    done = bench(program, *words)
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1 and said in done.stderr


def test_a_report_of_nothing_is_an_error(tmp_path):
    done = bench("run", "--report", "--folder", tmp_path, "--output", tmp_path / "results.md")
    assert (done.returncode, done.stderr) == (1, f"error: nothing is measured in {tmp_path}\n")
    assert not Path(tmp_path / "results.md").exists()
