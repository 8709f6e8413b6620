import pytest
from storm_runs import TESSERA, Place


@pytest.fixture(scope="session", autouse=True)
def built():
    if not TESSERA.exists():
        pytest.skip(f"{TESSERA} is not built (TESSERA_BUILD names another folder)")


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("storm"))
