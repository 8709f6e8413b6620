"""Runs a Python program as several ranks, as a launcher would."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release"))
PACKAGES = [str(BUILD / "python"), str(ROOT / "python" / "deepspeed")]
PATH_WITH_START = os.pathsep.join([str(ROOT / "tests" / "python" / "start"), *PACKAGES])  # Python starts as where the wheel is installed


# What another test may have left in this process.
OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(**extra):
    path = os.pathsep.join([*PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
    return {**own, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1", **extra}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(program, *arguments, count=2, timeout=300, fails=False, python=sys.executable, **extra):
    """Standard output of rank 0, once all ranks have ended well; `fails`: once one has not, every rank's output."""
    port = str(free_port())
    ranks, outputs = [], []
    with tempfile.TemporaryDirectory(prefix="tessera-test-") as folder:
        try:
            for rank in range(count):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TMPDIR": folder}
                ranks.append(subprocess.Popen(
                    [str(python), str(program), *map(str, arguments)], env=environment(**{**own, **extra}), stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            for process in ranks:
                outputs.append(process.communicate(timeout=timeout))
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    codes = [process.returncode for process in ranks]
    all_said = "\n".join(f"== rank {rank} ended with {code}\n{out}{error}"
                         for rank, (code, (out, error)) in enumerate(zip(codes, outputs)))
    assert any(codes) == fails, all_said
    return all_said if fails else outputs[0][0]


def asked_for(request, argument):
    """Of the tests of this module that are to run, the values of that parameter: those whose results a fixture needs."""
    items = [item for item in request.session.items if item.path == request.path and argument in getattr(getattr(item, "callspec", None), "params", {})]
    return [*dict.fromkeys(item.callspec.params[argument] for item in items)]


def run_for_json(program, *arguments, **options):
    """The last line that rank 0 prints."""
    return json.loads(run_ranks(program, *arguments, **options).strip().splitlines()[-1])
