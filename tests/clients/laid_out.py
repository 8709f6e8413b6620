"""Where checkouts are, and what programs of theirs find in the folder that they are started in."""

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
METRICS = HERE / "metrics"  # of evaluate
CHECKOUTS = Path(os.environ.get("CLIENTS", "/nowhere"))


def lay_out(folder, **places):
    """Links in `folder`: what a program asks a hub for by name, and finds there instead."""
    for name, place in places.items():
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(place)
