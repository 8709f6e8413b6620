"""DeepSpeed's own Python, where `make peers-test` has installed it, for tests that compare with it."""

import importlib.util
import os
from pathlib import Path

import pytest
from ranks import ROOT, run_for_json

# Resolved: DeepSpeed compiles its operators anew for each path that it is found by.
PYTHON = Path(os.environ.get("TESSERA_PEERS", ROOT / ".venv-peers")).resolve() / "bin" / "python"

needs_deepspeed = [pytest.mark.peers, pytest.mark.skipif(not PYTHON.exists(), reason="compares with DeepSpeed itself: make peers-test")]


def environment():
    """It looks for ninja in PATH, and would take a GPU that it finds."""
    return {"PYTHONPATH": "", "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "2", "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"}


def run_deepspeed_for_json(program, *arguments, timeout=600, **options):
    """As ranks.run_for_json; it compiles operators when it needs one for the first time."""
    return run_for_json(program, *arguments, python=PYTHON, timeout=timeout, **options, **environment())


def run_client_for_json(program, *arguments, timeout=600):
    """Of a program that imports clients of DeepSpeed, which .venv has and DeepSpeed's environment lacks."""
    clients = Path(importlib.util.find_spec("transformers").origin).parents[1]
    return run_deepspeed_for_json(Path(__file__).with_name("peer_with_packages.py"), clients, program, *arguments, timeout=timeout)


def largest_difference(ours, theirs):
    """Relative, of all pairs."""
    assert len(ours) == len(theirs) > 0
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
