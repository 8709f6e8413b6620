"""Binding each rank to its share of the machine's cores, with numactl: DeepSpeed's names of launch/core_binding.h."""

import shutil

from tessera import _launch


def parse_range(rng):
    """"3" -> [3], "2-4" -> [2, 3, 4]."""
    return _launch.parse_core_range(rng)


def parse_range_list(range_str):
    """"0,2-4" -> [0, 2, 3, 4]; each range after the one before it."""
    return _launch.parse_core_list(range_str)


def check_for_numactl_pkg():
    return shutil.which("numactl") is not None


def get_numa_cores():
    """Cores of each NUMA node; [] without numactl."""
    return _launch.numa_cores() if check_for_numactl_pkg() else []


def get_numactl_cmd(bind_core_list, num_local_procs, local_rank):
    """(cores of this rank, the words to put before its command): equal, consecutive shares of the cores."""
    _launch.require_core_binding()
    return _launch.bind_cores(bind_core_list or "", num_local_procs, local_rank)
