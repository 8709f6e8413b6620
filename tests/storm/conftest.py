import pytest
from storm_runs import Place  # finds fixtures, too
from fixtures import built  # noqa: F401


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("storm"))
