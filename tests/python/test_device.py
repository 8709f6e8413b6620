"""The engine from Python on a device whose memory the CPU cannot read: the results of the CPU."""

from pathlib import Path

import pytest
from ranks import run_for_json

PROGRAM = Path(__file__).resolve().parent / "device_runs.py"


@pytest.mark.parametrize("count", [1, 2])
def test_same_results_as_on_the_cpu(count):
    found = run_for_json(PROGRAM, count=count)
    assert len(found) == 8
    for name, (on_device, on_cpu) in found.items():
        tolerance = 2e-2 if "bf16" in name else 1e-4
        assert on_device["losses"] == pytest.approx(on_cpu["losses"], rel=tolerance), name
        assert on_device["weight"] == pytest.approx(on_cpu["weight"], rel=tolerance, abs=tolerance), name
        assert on_cpu["losses"][-1] < on_cpu["losses"][0]
