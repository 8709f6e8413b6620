"""Runs a program as one rank of an mpirun: mpi_rank.py PROGRAM ARGUMENT…"""

import os
import runpy
import sys

from tessera.rendezvous_env import find_place, set_place

set_place(find_place(os.environ, 29500))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
