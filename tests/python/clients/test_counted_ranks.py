"""Accelerate and the Trainer count ranks without a GPU, in programs that do nothing for it."""

import subprocess
import sys

import pytest
import ranks


@pytest.mark.parametrize("how", ["at the start", "by the import"])
def test_ranks_without_a_gpu_are_counted(how, here):
    program = here / "counted_ranks.py"
    if how == "by the import":
        found = ranks.run_for_json(program, "imports")
    else:
        found = ranks.run_for_json(program, PYTHONPATH=ranks.PATH_WITH_START)
    assert found == [2, 0, "gloo", "cpu", 2, False]


def test_ranks_without_a_gpu_train_in_bf16(here):
    assert ranks.run_for_json(here / "counted_ranks.py", "bf16", PYTHONPATH=ranks.PATH_WITH_START) == [2, 0, "gloo", "cpu", 2, True]
    assert "bf16" in ranks.run_for_json(here / "counted_ranks.py", "plain", "bf16", PYTHONPATH=ranks.PATH_WITH_START)  # the refusal


def test_without_deepspeed_nothing_changes(here):
    """What Accelerate does by itself."""
    assert ranks.run_for_json(here / "counted_ranks.py", "plain", PYTHONPATH=ranks.PATH_WITH_START) == \
        ranks.run_for_json(here / "counted_ranks.py", "plain")


def test_a_process_that_is_no_rank_starts_without_it(here):
    text = "import sys; print('tessera' in sys.modules, any('tessera' in type(each).__module__ for each in sys.meta_path))"
    environment = ranks.environment(PYTHONPATH=ranks.PATH_WITH_START)
    for rank, expected in ({}, "False False"), ({"LOCAL_RANK": "0"}, "True True"):
        done = subprocess.run([sys.executable, "-c", text], env={**environment, **rank}, capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == expected, done.stderr
