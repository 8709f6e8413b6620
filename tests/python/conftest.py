import json
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


@pytest.fixture
def figure(record_property):
    """Notes a difference from DeepSpeed for the table that `make peers-test` ends with, and returns it."""
    def note(what, difference):
        record_property("figure", json.dumps([what, difference]))
        return difference
    return note
