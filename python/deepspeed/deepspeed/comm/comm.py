"""The default process group, other groups, and the collectives on them.

Collectives take torch.distributed's arguments, and `prof`, `log_name` and `debug` besides: with the comms logger on
(ds_config's comms_logger, or configure()), each call is timed and kept under its name and message size.
"""

import functools
import os
import time

import torch.distributed as dist
from torch.distributed import ReduceOp

from deepspeed import _names
from deepspeed.accelerator import get_accelerator
from deepspeed.comm.torch import TorchBackend
from deepspeed.comm.utils import get_msg_size_from_args
from deepspeed.constants import TORCH_DISTRIBUTED_DEFAULT_PORT, default_pg_timeout
from deepspeed.utils.comms_logging import CommsLogger, get_caller_func
from deepspeed.utils.logging import logger
from tessera.rendezvous_env import find_place, has_rendezvous, set_place, set_place_in_slurm_step

_names.serve(__name__)

cdb = None  # the backend in use, DeepSpeed's name for it
comms_logger = CommsLogger()

_reduce_scatter_flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class ProcessGroup:
    def __init__(self, comm_id, ranks=[]):
        self.ranks, self.comm_id, self.size = ranks, comm_id, len(ranks)


# The default group

def is_initialized():
    return dist.is_available() and dist.is_initialized()


def is_available():
    return dist.is_available()


def init_distributed(dist_backend=None, auto_mpi_discovery=True, distributed_port=TORCH_DISTRIBUTED_DEFAULT_PORT,
                     verbose=True, timeout=default_pg_timeout, init_method=None, dist_init_required=None, config=None,
                     rank=-1, world_size=-1):
    """Makes torch's default process group, unless it is there. The backend is nccl on CUDA devices and gloo on the CPU,
    if none is named; ranks and address come from `init_method` with `rank` and `world_size`, or the environment."""
    global cdb
    configure(deepspeed_config=config)
    if not is_initialized():
        if dist_init_required is False:
            raise RuntimeError("dist_init_required is False, but there is no default process group: call torch.distributed.init_process_group first, or leave dist_init_required out")
        if init_method is None and not has_rendezvous(os.environ):
            _find_peers(auto_mpi_discovery, distributed_port)
    if cdb is None or not cdb.is_initialized():
        backend = dist_backend or get_accelerator().communication_backend_name()
        if verbose and not is_initialized():
            logger.info(f"creating the default process group, backend {backend}")
        cdb = TorchBackend(backend, timeout, init_method, rank, world_size)


def _find_peers(auto_mpi_discovery, port):
    if not auto_mpi_discovery and "RANK" in os.environ:
        raise RuntimeError("RANK is set, but MASTER_ADDR, MASTER_PORT or WORLD_SIZE is not: start the program with the "
                           "deepspeed launcher or torchrun, or set all four")
    _set_own_place(port)


def _set_own_place(port):
    if not set_place_in_slurm_step():
        set_place(find_place(os.environ, port))


def mpi_discovery(distributed_port=TORCH_DISTRIBUTED_DEFAULT_PORT, verbose=True):
    """Sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT from what mpirun or srun set."""
    _set_own_place(distributed_port)


def set_backend():
    global cdb
    if is_initialized():
        cdb = TorchBackend(None, None, None)


def in_aml():
    return "AZUREML_EXPERIMENT_ID" in os.environ


def in_aws_sm():
    return "SM_TRAINING_ENV" in os.environ


def in_dlts():
    return "DLTS_JOB_ID" in os.environ


def destroy_process_group(group=None):
    global cdb
    dist.destroy_process_group(group)
    if group is None:
        cdb = None


# Groups and ranks

def new_group(ranks):
    return dist.new_group(ranks)


def get_world_group():
    return dist.group.WORLD


def get_world_size(group=None):
    return dist.get_world_size(group=group)


def get_rank(group=None):
    return dist.get_rank(group=group)


def get_local_rank():
    return int(os.environ.get("LOCAL_RANK", 0))


def get_global_rank(group=None, group_rank=0):
    return dist.get_global_rank(dist.group.WORLD if group is None else group, group_rank)


def get_all_ranks_from_group(group=None):
    return dist.get_process_group_ranks(dist.group.WORLD if group is None else group)


def initialize_mesh_device(mesh_shape, mesh_dim_names):
    """A torch DeviceMesh with a process group along each dimension."""
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh(get_accelerator().current_device_name(), mesh_shape, mesh_dim_names=mesh_dim_names)


def has_all_gather_into_tensor():
    return True


has_reduce_scatter_tensor = has_coalescing_manager = has_all_reduce_coalesced = has_all_gather_into_tensor


# The comms logger

def configure(deepspeed_config=None, enabled=None, prof_all=None, prof_ops=None, verbose=None, debug=None):
    if deepspeed_config is not None:
        comms_logger.configure(deepspeed_config.comms_config)
    given = {"enabled": enabled, "prof_all": prof_all, "prof_ops": prof_ops, "verbose": verbose, "debug": debug}
    comms_logger.take({**{name: getattr(comms_logger, name) for name in given},
                       **{name: value for name, value in given.items() if value is not None}})


def log_summary(show_straggler=False, return_dict=False):
    """Prints the table on rank 0; with return_dict, hands it out on every rank."""
    barrier(log_name="log_summary_barrier")
    summary = comms_logger.log_all(print_log=get_rank() == 0, show_straggler=show_straggler, return_dict=return_dict)
    barrier(log_name="log_summary_barrier")
    return summary


def reset_log():
    comms_logger.reset_data()


def has_comm_data():
    return comms_logger.has_data()


def get_comm_operation_count():
    return comms_logger.get_total_operations()


def get_logged_comm_ops():
    return comms_logger.get_operation_names()


def timed_op(func):
    """Times the collective while the comms logger is on for it: until the call returns, also if that is before the end
    of an asynchronous one."""

    @functools.wraps(func)
    def timed(*args, prof=False, log_name=None, debug=None, **kwargs):
        name = log_name or func.__name__
        wanted = comms_logger.enabled and (prof or comms_logger.prof_all or name in comms_logger.prof_ops)
        if not wanted:
            return func(*args, **kwargs)
        record = f"{name} | [Caller Func: {debug or get_caller_func()}]" if comms_logger.debug else name
        message_bytes = get_msg_size_from_args(func, *args, **kwargs)
        get_accelerator().synchronize()
        start = time.perf_counter()
        result = func(*args, **kwargs)
        get_accelerator().synchronize()
        comms_logger.append(func.__name__, record, (time.perf_counter() - start) * 1e3, message_bytes)
        return result

    return timed


# Collectives

@timed_op
def broadcast(tensor, src, group=None, async_op=False):
    return dist.broadcast(tensor, src=src, group=group, async_op=async_op)


@timed_op
def broadcast_object_list(object_list, src, group=None, device=None):
    return dist.broadcast_object_list(object_list, src=src, group=group, device=device)


@timed_op
def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    return dist.all_reduce(tensor, op=op, group=group, async_op=async_op)


@timed_op
def inference_all_reduce(tensor, op=ReduceOp.SUM, group=None):
    dist.all_reduce(tensor, op=op, group=group)
    return tensor


@timed_op
def all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op=False):
    return _all_of([dist.all_reduce(tensor, op=op, group=group, async_op=async_op) for tensor in tensors], async_op)


@timed_op
def reduce(tensor, dst, op=ReduceOp.SUM, group=None, async_op=False):
    return dist.reduce(tensor, dst=dst, op=op, group=group, async_op=async_op)


@timed_op
def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False):
    return dist.reduce_scatter(output, input_list, op=op, group=group, async_op=async_op)


@timed_op
def reduce_scatter_tensor(output_tensor, tensor, op=ReduceOp.SUM, group=None, async_op=False):
    return _reduce_scatter_flat(output_tensor, tensor, op=op, group=group, async_op=async_op)


def reduce_scatter_fn(output_tensor, tensor, op=ReduceOp.SUM, group=None, async_op=False, prof=False, debug=None):
    return reduce_scatter_tensor(output_tensor, tensor, op=op, group=group, async_op=async_op, prof=prof, debug=debug)


@timed_op
def all_gather(tensor_list, tensor, group=None, async_op=False):
    return dist.all_gather(tensor_list, tensor, group=group, async_op=async_op)


@timed_op
def all_gather_into_tensor(output_tensor, tensor, group=None, async_op=False):
    return _all_gather_flat(output_tensor, tensor, group=group, async_op=async_op)


def allgather_fn(output_tensor, input_tensor, group=None, async_op=False, debug=None):
    return all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op, debug=debug)


@timed_op
def all_gather_coalesced(output_tensors, input_tensors, group=None, async_op=False):
    """Gathers each input into its output; `async_op` returns one handle for all."""
    return _all_of([_all_gather_flat(output, part, group=group, async_op=async_op)
                    for output, part in zip(output_tensors, input_tensors)], async_op)


@timed_op
def all_gather_object(object_list, obj, group=None):
    return dist.all_gather_object(object_list, obj, group=group)


@timed_op
def all_to_all_single(output, tensor, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    return dist.all_to_all_single(output, tensor, output_split_sizes=output_split_sizes,
                                  input_split_sizes=input_split_sizes, group=group, async_op=async_op)


@timed_op
def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    return dist.all_to_all(output_tensor_list, input_tensor_list, group=group, async_op=async_op)


@timed_op
def gather(tensor, gather_list=None, dst=0, group=None, async_op=False):
    return dist.gather(tensor, gather_list, dst=dst, group=group, async_op=async_op)


@timed_op
def scatter(tensor, scatter_list=None, src=0, group=None, async_op=False):
    return dist.scatter(tensor, scatter_list, src=src, group=group, async_op=async_op)


@timed_op
def barrier(group=None, async_op=False, device_ids=None):
    return dist.barrier(group=group, async_op=async_op, device_ids=device_ids)


@timed_op
def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    return dist.monitored_barrier(group=group, timeout=timeout, wait_all_ranks=wait_all_ranks)


# Point to point

@timed_op
def send(tensor, dst, group=None, tag=0):
    return dist.send(tensor, dst=dst, group=group, tag=tag)


@timed_op
def recv(tensor, src=None, group=None, tag=0):
    return dist.recv(tensor, src=src, group=group, tag=tag)


@timed_op
def isend(tensor, dst, group=None, tag=0):
    return dist.isend(tensor, dst=dst, group=group, tag=tag)


@timed_op
def irecv(tensor, src=None, group=None, tag=0):
    return dist.irecv(tensor, src=src, group=group, tag=tag)


class P2POp:
    """One isend or irecv of a batch; `op` is deepspeed.comm's or torch.distributed's function."""

    def __init__(self, op, tensor, peer, group=None, tag=0):
        self.op, self.tensor, self.peer, self.group, self.tag = op, tensor, peer, group, tag

    def for_torch(self):
        function = {"isend": dist.isend, "irecv": dist.irecv}[self.op.__name__]
        return dist.P2POp(function, self.tensor, self.peer, self.group, self.tag)


@timed_op
def batch_isend_irecv(p2p_op_list):
    return dist.batch_isend_irecv([op.for_torch() if isinstance(op, P2POp) else op for op in p2p_op_list])


class _AllOf:
    """One handle for several."""

    def __init__(self, handles):
        self.handles = handles

    def wait(self):
        for handle in self.handles:
            handle.wait()

    def is_completed(self):
        return all(handle.is_completed() for handle in self.handles)


def _all_of(handles, async_op):
    return _AllOf(handles) if async_op else None


def enable_symm_mem_for_group(group_name):
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group as enable
    return enable(group_name)


def patch_aml_env_for_torch_nccl_backend(master_port=6105, verbose=True):
    """Sets torch's variables from those of Azure ML's MPI jobs."""
    os.environ.update(RANK=os.environ["OMPI_COMM_WORLD_RANK"], WORLD_SIZE=os.environ["OMPI_COMM_WORLD_SIZE"],
                      LOCAL_RANK=os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    address, _, port = os.environ.get("AZ_BATCH_MASTER_NODE", "").partition(":")
    os.environ.update(MASTER_ADDR=address or os.environ["AZ_BATCHAI_MPI_MASTER_NODE"],
                      MASTER_PORT=port or str(master_port))


def patch_aws_sm_env_for_torch_nccl_backend(verbose=True):
    """Sets torch's variables from those of SageMaker's MPI jobs."""
    os.environ.update(RANK=os.environ["OMPI_COMM_WORLD_RANK"], WORLD_SIZE=os.environ["OMPI_COMM_WORLD_SIZE"],
                      LOCAL_RANK=os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
