import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "end_to_end")]
import ranks  # noqa: E402

sys.path[:0] = ranks.PACKAGES


@pytest.fixture(scope="session")
def here(request):
    return TESTS / "clients"
