"""Where our programs and the Pythons are, and which peers are installed.

TESSERA_BUILD and TESSERA_PEERS name another build and another environment of the peers than build/release and .venv-peers;
TESSERA_PYTHON another Python with torch than that of .venv.
"""

import functools
import os
import pathlib
import shutil
import subprocess

BENCH = pathlib.Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
BUILD = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release")).resolve()
TESSERA = BUILD / "tessera"
OUR_PYTHON = pathlib.Path(os.environ.get("TESSERA_PYTHON", ROOT / ".venv" / "bin" / "python"))
# Resolved: DeepSpeed compiles its operators anew for each path that it is found by.
PEERS_PYTHON = pathlib.Path(os.environ.get("TESSERA_PEERS", ROOT / ".venv-peers")).resolve() / "bin" / "python"
OUR_MODULES = os.pathsep.join(map(str, (BUILD / "python", ROOT / "python" / "deepspeed")))
NOT_INSTALLED = "not installed (make peers)"


def has_deepspeed():
    return has_module(PEERS_PYTHON, "deepspeed")


def has_fio():
    return shutil.which("fio") is not None


@functools.cache
def has_module(python, module):
    if not python.exists():
        return False
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], capture_output=True, timeout=60).returncode == 0


def thread_environment(threads=1):
    """Of any program that computes: the threads it may use, and a quiet log. Nothing that a launcher left."""
    kept = {key: value for key, value in os.environ.items()
            if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")}
    return {**kept, "OMP_NUM_THREADS": str(threads), "TESSERA_LOG_LEVEL": "warning"}


def peers_environment(threads=1):
    """DeepSpeed looks for ninja in PATH, and would take a GPU that it finds."""
    own = thread_environment(threads)
    return {**own, "PATH": f"{PEERS_PYTHON.parent}{os.pathsep}{own['PATH']}", "DS_ACCELERATOR": "cpu"}


def our_environment(threads=1):
    return {**thread_environment(threads), "PYTHONPATH": OUR_MODULES}
