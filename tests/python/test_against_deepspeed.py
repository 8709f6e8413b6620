"""The same script, losses and saved weights beside DeepSpeed 0.19.8's own. Needs .venv-peers (make peers)."""

import os
from pathlib import Path

import pytest
import torch
from ranks import ROOT, run_for_json

PEERS = ROOT / ".venv-peers" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PEERS.exists(), reason="needs DeepSpeed in .venv-peers: make peers")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    program = Path(__file__).with_name("peer_runs.py")
    folders = [tmp_path_factory.mktemp(name) for name in ("ours", "theirs")]
    ours = run_for_json(program, folders[0])
    theirs = run_for_json(program, folders[1], python=PEERS, PYTHONPATH="", DS_ACCELERATOR="cpu", LOCAL_SIZE="2",
                          PATH=f"{PEERS.parent}{os.pathsep}{os.environ['PATH']}", timeout=600)  # it compiles operators
    return ours, theirs, folders


@pytest.mark.parametrize("stage", range(4))
def test_same_losses_and_weights(runs, stage):
    ours, theirs, folders = runs
    assert ours[str(stage)] == pytest.approx(theirs[str(stage)], rel=1e-5)
    saved = [torch.load(folder / f"{stage}.pt") for folder in folders]
    assert saved[0].keys() == saved[1].keys()
    for name, value in saved[1].items():
        torch.testing.assert_close(saved[0][name], value, rtol=1e-4, atol=1e-5)
