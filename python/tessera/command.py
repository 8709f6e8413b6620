"""The command `tessera` of a wheel: the program that lies in it, on the torch of this environment. No torch here: the program loads it."""

import importlib.util
import os
import sys
from pathlib import Path

from tessera.error_report import made, run_program

PROGRAM = Path(__file__).parent / "bin" / "tessera"


def _start():
    if not PROGRAM.exists():
        raise made(ValueError, "this build of Tessera has no program", PROGRAM,
                   "build it without TESSERA_BUILD_PROGRAM=OFF, in Tessera's repository: pip install ./python")
    torch = importlib.util.find_spec("torch")
    if torch is None:
        raise made(ValueError, "torch is not installed", sys.prefix, "pip install torch, of the release that Tessera was built for")
    libraries = Path(torch.origin).parent / "lib"
    if libraries != PROGRAM.parents[2] / "torch" / "lib":  # where the program looks by itself
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    os.execv(PROGRAM, ["tessera", *sys.argv[1:]])


def main():
    sys.exit(run_program(_start))
