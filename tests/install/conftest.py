import pytest
from installed_tree import install_and_move


@pytest.fixture(scope="session")
def moved(tmp_path_factory):
    return install_and_move(tmp_path_factory.mktemp("moved"))
