"""Sequences that several ranks share, each of which has some tokens of them: who they are by a program's own words, and what they
exchange around attention (tessera/nn/context_axis.h)."""

import functools
import weakref

import torch.distributed as dist

from tessera import _core
from tessera.error_report import made
from tessera.world import world_of

_axes = weakref.WeakKeyDictionary()  # process group -> ContextAxis


def ranks_of_a_sequence(mpu, mesh_param, config):
    """How many, by the argument mesh_param of initialize, (data-parallel ranks, ranks of a sequence), by the ds_config's
    sequence_parallel_size, or by the mpu, in this order; 1 where none says so."""
    if mesh_param is not None:
        return int(mesh_param[1])
    configured = config.get("sequence_parallel_size")
    if isinstance(configured, int) and configured > 1:
        return configured
    return mpu.get_sequence_parallel_world_size() if hasattr(mpu, "get_sequence_parallel_group") else 1


def mesh_of_config(config, ranks):
    """A mesh_param by the ds_config's sequence_parallel_size and data_parallel_size; None where it asks for no sharing."""
    size = config.get("sequence_parallel_size")
    if not isinstance(size, int) or size <= 1:
        return None
    return config.get("data_parallel_size", ranks // size), size


def mesh_of(size, mpu):
    """Neighbours share sequences; the others have data of their own. Collective."""
    mesh = _core.Mesh.of_world(world_of(), [("dp_shard", 0), ("cp", size)], "the ranks that share a sequence")
    if hasattr(mpu, "get_sequence_parallel_group"):
        ranks = dist.get_process_group_ranks(mpu.get_sequence_parallel_group())
        first = dist.get_rank() // size * size
        if list(ranks) != list(range(first, first + size)):
            raise made(_core.UsageError, f"the mpu's ranks {ranks} share sequences, and they are no {size} neighbours", "the argument mpu of initialize",
                       "make the groups of ranks that follow each other")
    return mesh


def exchanges(group, local_length, heads, key_heads):
    """(of queries, of keys and values) over a process group whose ranks have equally many tokens. The group's first is collective."""
    axis = _axes.get(group)
    if axis is None:
        axis = _axes[group] = _core.ContextAxis(world_of(group))
    return _made(axis, local_length, heads, key_heads)


@functools.lru_cache(maxsize=64)
def _made(axis, local_length, heads, key_heads):
    return axis.exchanges([local_length] * axis.size, heads, key_heads)
