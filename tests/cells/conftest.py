import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "end_to_end")]
from fixtures import built  # noqa: E402,F401
