import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(TESTS / "end_to_end")]
from fixtures import *  # noqa: E402,F401,F403
from slurm_cluster import Cluster, obstacle  # noqa: E402


@pytest.fixture(scope="session")
def cluster():
    why = obstacle()
    if why:
        pytest.skip(why)
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.stop()
