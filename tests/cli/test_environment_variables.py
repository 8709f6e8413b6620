"""docs/run-file.md tells each variable that the code reads from its environment."""

import re

from tessera_runs import REPOSITORY

# Set by `tessera train --nproc` for its own ranks; builds with tests only.
NOT_FOR_USERS = {"TESSERA_NPROC", "TESSERA_FAULT"}


def test_the_page_has_every_variable():
    sources = [path.read_text() for suffix in ("*.cpp", "*.h") for path in (REPOSITORY / "tessera").rglob(suffix)]
    read = {name for text in sources for name in re.findall(r'"(TESSERA_[A-Z_]+)"', text)}
    told = re.findall(r"^\| (TESSERA_[A-Z_]+) ", (REPOSITORY / "docs" / "run-file.md").read_text(), re.MULTILINE)
    assert len(read) > 8 and sorted(told) == sorted(read - NOT_FOR_USERS)
