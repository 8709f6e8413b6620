import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ranks  # noqa: E402

sys.path[:0] = ranks.PACKAGES


@pytest.fixture(scope="session")
def here(request):
    return Path(__file__).resolve().parent / "clients"
