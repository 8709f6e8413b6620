import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end"))
from fixtures import *  # noqa: E402,F401,F403
from cluster import Cluster, why_not  # noqa: E402


@pytest.fixture(scope="session")
def hosts_can_be_made():
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def hosts(hosts_can_be_made, tmp_path):
    """node1, node2 and node3, fresh."""
    with Cluster(tmp_path / "cluster") as cluster:
        yield cluster
