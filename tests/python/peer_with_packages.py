"""peer_with_packages.py FOLDER PROGRAM ARGUMENT…: runs the program with the packages in FOLDER behind those of this Python."""

import runpy
import sys
from pathlib import Path

folder, program, *arguments = sys.argv[1:]
sys.path[:1] = [str(Path(program).parent)]
sys.path.append(folder)
sys.argv = [program, *arguments]
runpy.run_path(program, run_name="__main__")
