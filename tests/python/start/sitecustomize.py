"""On PYTHONPATH: what the wheel's .pth file does at Python's start, from the checkout."""

import site
from pathlib import Path

site.addsitedir(str(Path(__file__).resolve().parents[3] / "python"))
