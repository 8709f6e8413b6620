"""The ranks that train together: torch.distributed's group, as the engine's own group over the group's store."""

import os
import weakref

import torch.distributed as dist

from tessera import _core, gloo_threads, hang_stack  # noqa: F401  (both act by themselves)
from tessera.rendezvous_env import has_rendezvous, set_place_in_slurm_step

# torch.distributed's groups over the shared memory of one host, init_process_group("shm"), and over the MPI of the mpirun
# that started the ranks ("mpi" itself is torch's own, which its wheels lack).
for _name, _make in {"shm": _core.make_shm_backend, "tessera_mpi": _core.make_mpi_backend}.items():
    if _name not in dist.Backend.backend_list:
        dist.Backend.register_backend(_name, _make, devices=["cpu"])

_worlds = weakref.WeakKeyDictionary()  # process group -> World
_connections = 0


def join(backend="gloo"):
    """Makes torch.distributed's default group from the launcher's environment, if nobody has yet."""
    if dist.is_initialized():
        return
    if not has_rendezvous(os.environ):
        set_place_in_slurm_step()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        init_process_group(backend)


def init_process_group(backend, **arguments):
    """torch.distributed's own, over the run's store, which knows its ranks by the run's secret; where the arguments or torchrun
    name another store, over that one."""
    named = {"init_method", "store", "rank", "world_size"} & arguments.keys()
    if not named and has_rendezvous(os.environ) and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        timeout = arguments.get("timeout") or dist.constants.default_pg_timeout
        store = _core.open_store(timeout) if size > 1 else dist.HashStore()
        arguments |= {"store": store, "rank": rank, "world_size": size}
    dist.init_process_group(backend, **arguments)


def world_of(group=None):
    """The World of a process group (None: of all ranks). Collective when a group is first asked for."""
    global _connections
    join()
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return _core.World.alone()
    key = dist.group.WORLD if group is None else group
    if key not in _worlds:
        members = dist.get_process_group_ranks(key)
        _core.set_log_rank(dist.get_rank(), dist.get_world_size())
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "0")))
        _connections += 1
        _worlds[key] = _core.World.connect(
            rank=dist.get_rank(group),
            size=len(members),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")) if local_size else dist.get_rank(group),
            master_addr=os.environ.get("MASTER_ADDR", "localhost"),
            store=dist.distributed_c10d._get_default_store(),
            name=f"tessera/{_connections}/{'.'.join(map(str, members))}",
            nccl=_nccl_of(key),
        )
    return _worlds[key]


def _nccl_of(group):
    """torch's own NCCL group of these ranks; None: there is none."""
    backends = (group._get_backend(device) for device in group._device_types if device.type != "cpu")
    return next((backend for backend in backends if backend.name() == "nccl"), None)
