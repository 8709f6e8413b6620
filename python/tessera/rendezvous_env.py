"""Which rank this process is, and where its peers meet, from the environment that the launcher set.

torchrun, the deepspeed launcher and Accelerate set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Under
mpirun and srun the ranks have other names; they are read, too. Without any of it the process is a world of its own.
"""

import os
import socket
from dataclasses import dataclass

from tessera import _launch

# Rank, size, local rank, as each starter names them.
_STARTERS = {
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    "MPI (PMI)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
}


@dataclass
class Place:
    """A rank of a world, and the address of the world's rank 0."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int


def free_local_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def has_rendezvous(environment):
    return all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def find_place(environment, default_port):
    """The place that mpirun gave this process; a world of one where it gave none."""
    for starter, (rank, size, local_rank) in _STARTERS.items():
        if rank not in environment or int(environment.get(size, 1)) == 1:
            continue
        if "MASTER_ADDR" not in environment:
            raise RuntimeError(
                f"this is rank {environment[rank]} of {environment[size]} under {starter}, but nothing says where rank 0 is: set MASTER_ADDR to its host on every rank (and MASTER_PORT, if "
                f"port {default_port} is taken there), or start the program with the deepspeed launcher")
        return Place(int(environment[rank]), int(environment[size]), int(environment.get(local_rank, 0)),
                     environment["MASTER_ADDR"], int(environment.get("MASTER_PORT", default_port)))
    return Place(0, 1, 0, "127.0.0.1", free_local_port())


def set_place_in_slurm_step():
    """Whether srun started this process as one of several: then its environment has torch's and DeepSpeed's names, too."""
    variables = _launch.slurm_rank_variables()
    if int(variables.get("WORLD_SIZE", 1)) == 1:
        return False
    os.environ.update(variables)
    return True


def set_place(place):
    """Writes it into this process's environment under torch's names."""
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world_size), LOCAL_RANK=str(place.local_rank),
                      MASTER_ADDR=place.address, MASTER_PORT=str(place.port))
