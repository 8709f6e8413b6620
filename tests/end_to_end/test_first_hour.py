"""tests/end_to_end/first_hour, a user at a time. What the C++ team does is tests/install/test_cpp_guide.py, which runs by itself."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "first_hour"


@pytest.mark.parametrize("user", ["student", "admin"])
def test_the_first_hour_of(user):
    result = subprocess.run([sys.executable, str(SCRIPT), user], text=True, capture_output=True, timeout=900)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
