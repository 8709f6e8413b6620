"""Training state moved to the host and back on a device whose memory the CPU cannot read."""

from pathlib import Path

import pytest
from ranks import run_for_json


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("moved_runs.py"), timeout=600)


CASES = [f"stage {stage}, {precision}, {name}" for stage, precision in [(0, "fp32"), (1, "bf16"), (2, "fp32"), (2, "bf16"), (3, "fp32"), (3, "bf16")]
         for name in ("some", "all")]


@pytest.mark.parametrize("case", [*CASES, "stage 2, bf16, the client's"])
def test_training_goes_on_with_the_same_bits(runs, case):
    moved, plain = runs[case]["results"]
    assert moved == plain and len(set(plain)) == 4
    assert runs[case]["counts"] == [2, 2]


@pytest.mark.parametrize("case", CASES)
def test_the_device_gets_its_memory_back_meanwhile(runs, case):
    run = runs[case]
    assert run["expected"] <= run["freed"] < 1.4 * run["expected"]  # each parameter is padded to 32 elements
    away = {"optim_states", "lp_grads", "contiguous_grad_buffer"} | ({"hp_params"} if "bf16" in case else set())
    if case.endswith("all"):
        away |= {"hp_params", "lp_params"}
    assert {state for state, devices in run["devices"].items() if devices == ["cpu"]} == away


def test_it_rests_in_pinned_memory_unless_told_not_to(runs):
    assert runs["stage 3, fp32, pageable"]["pinned"] == 0 and runs["stage 3, fp32, pageable"]["results"] == runs["stage 3, fp32, all"]["results"]
    for case in CASES:
        assert runs[case]["pinned"] >= runs[case]["freed"]


@pytest.mark.parametrize("case", [*CASES, "stage 2, bf16, the client's"])
def test_what_needs_the_state_meanwhile_is_refused(runs, case):
    run = runs[case]
    for text in run["refused"]:
        assert "reload_states() first" in text
    kind, text = run["evaluated"]
    if case.endswith("all"):
        assert "reload_states() first" in text
    else:
        assert kind == "nothing"  # the parameters are where they were
