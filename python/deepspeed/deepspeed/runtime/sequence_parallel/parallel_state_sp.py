"""The groups of ranks that share sequences, as an mpu: neighbours do."""

from deepspeed import comm as dist

_groups = {}  # "sequence", "data": process groups


def initialize_sequence_parallel(sequence_parallel_size):
    """Collective. Of size 1: every rank has sequences of its own."""
    ranks = dist.get_world_size()
    if sequence_parallel_size < 1 or ranks % sequence_parallel_size != 0:
        raise RuntimeError(f"world_size ({ranks}) is not divisible by sequence_parallel_size {sequence_parallel_size}")
    if _groups:
        if get_sequence_parallel_world_size() != sequence_parallel_size:
            raise RuntimeError(f"{get_sequence_parallel_world_size()} ranks share sequences already, not {sequence_parallel_size}")
        return
    for first in range(0, ranks, sequence_parallel_size):
        members = list(range(first, first + sequence_parallel_size))
        group = dist.new_group(members)
        if dist.get_rank() in members:
            _groups["sequence"] = group
    _groups["data"] = dist.new_group(list(range(ranks)))


def get_sequence_parallel_group():
    assert _groups, "sequence parallel group is not initialized: call initialize_sequence_parallel"
    return _groups["sequence"]


def get_sequence_data_parallel_group():
    """The ranks over which ZeRO shards: all."""
    assert _groups, "sequence data parallel group is not initialized: call initialize_sequence_parallel"
    return _groups["data"]


def get_sequence_parallel_world_size():
    return dist.get_world_size(group=get_sequence_parallel_group())


def get_sequence_data_parallel_world_size():
    return dist.get_world_size(group=get_sequence_data_parallel_group())


def get_sequence_parallel_rank():
    return dist.get_rank(group=get_sequence_parallel_group())


def get_sequence_data_parallel_rank():
    return dist.get_rank(group=get_sequence_data_parallel_group())
