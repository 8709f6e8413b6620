"""The backend that carries every collective: torch.distributed."""

import importlib

import torch

from deepspeed import _names
from deepspeed.comm.backend import Backend

_names.serve(__name__)


class TorchBackend(Backend):
    """Joins torch's default process group, or makes it: `backend` is shm (shared memory of one host),
    tessera_mpi (MPI, under mpirun), gloo, nccl or another of torch's names."""

    def __init__(self, backend, timeout, init_method, rank=-1, world_size=-1, name="torch"):
        super().__init__(name)
        if not torch.distributed.is_initialized():
            self.init_process_group(backend, timeout, init_method, rank, world_size)
        self.initialized = True
        self.world_group = torch.distributed.group.WORLD
        self.world_rank, self.world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def init_process_group(self, backend, timeout, init_method, rank, world_size):
        world = importlib.import_module("tessera.world")  # registers shm and tessera_mpi
        where = {} if init_method in (None, "env://") else {"init_method": init_method}
        if rank >= 0:
            where |= {"rank": rank, "world_size": world_size}
        world.init_process_group(backend, timeout=timeout, **where)

    @staticmethod
    def get_all_gather_function():
        return torch.distributed.all_gather_into_tensor

    @staticmethod
    def get_reduce_scatter_function():
        return torch.distributed.reduce_scatter_tensor

    def is_initialized(self):
        return torch.distributed.is_initialized()

    def get_backend(self, group=None):
        return torch.distributed.get_backend(group=group)

    def get_rank(self, group=None):
        return torch.distributed.get_rank(group=group)

    def get_world_size(self, group=None):
        return torch.distributed.get_world_size(group=group)

    def new_group(self, ranks):
        return torch.distributed.new_group(ranks)

    def get_world_group(self):
        return torch.distributed.group.WORLD
