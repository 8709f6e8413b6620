"""The MPI backend as torch.distributed sees it, beside gloo: the same collectives, the same results."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import BUILD, environment, free_port, run_for_json

HERE = Path(__file__).resolve().parent
MPIRUN = {"openmpi": ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpirun.mpich"]}


@pytest.mark.parametrize("mpi", MPIRUN)
def test_every_collective_gives_what_gloo_gives(mpi, count=2):
    if not (BUILD / "lib" / f"libtessera_mpi_{mpi}.so").exists():
        pytest.skip(f"the plugin for {mpi} is not built: its headers were not found")
    if shutil.which(MPIRUN[mpi][0]) is None:
        pytest.skip(f"there is no {MPIRUN[mpi][0]}")
    as_root = ["--allow-run-as-root"] if mpi == "openmpi" and os.geteuid() == 0 else []
    program = [sys.executable, str(HERE / "mpi_rank.py"), str(HERE / "shm_collectives.py"), "tessera_mpi"]
    done = subprocess.run([*MPIRUN[mpi], *as_root, "-n", str(count), *program], text=True, capture_output=True, timeout=300,
                          stdin=subprocess.DEVNULL, env=environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    got = json.loads(done.stdout.strip().splitlines()[-1])
    expected = run_for_json(HERE / "shm_collectives.py", "gloo", count=count)
    for rank in range(count):
        assert len(got[rank][0]) == len(expected[rank][0]) > 250
        for ours, theirs in zip(got[rank][0], expected[rank][0]):
            assert ours == theirs
        assert got[rank][1] == pytest.approx(expected[rank][1], rel=1e-6)
