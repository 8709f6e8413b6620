"""Binding each rank to its share of the machine's cores, with numactl."""

import os
import shutil
import subprocess

from tessera.launch_error import refused


def parse_range(rng):
    """"3" -> [3], "2-4" -> [2, 3, 4]."""
    try:
        first, _, last = rng.partition("-")
        start, end = int(first), int(last or first)
    except ValueError:
        raise refused(f"'{rng}' is not a core or a range of cores", "--bind_core_list",
                      "write it like 3 or 2-4, with commas between them") from None
    if start > end:
        raise refused(f"the range of cores '{rng}' ends before it starts", "--bind_core_list", f"write {end}-{start}")
    return list(range(start, end + 1))


def parse_range_list(range_str):
    """"0,2-4" -> [0, 2, 3, 4]; each range after the one before it."""
    cores = []
    for part in range_str.split(","):
        found = parse_range(part)
        if cores and found[0] <= cores[-1]:
            raise refused(f"in the cores '{range_str}', '{part}' does not come after {cores[-1]}", "--bind_core_list",
                          "list them in ascending order, each once")
        cores += found
    return cores


def check_for_numactl_pkg():
    return shutil.which("numactl") is not None


def get_numa_cores():
    """Cores of each NUMA node, by `numactl --hardware`; [] without numactl."""
    if not check_for_numactl_pkg():
        return []
    text = subprocess.run(["numactl", "--hardware"], capture_output=True, text=True, timeout=30, check=True).stdout
    return [[int(core) for core in line.split("cpus:")[1].split()] for line in text.splitlines() if " cpus:" in line]


def get_numactl_cmd(bind_core_list, num_local_procs, local_rank):
    """(cores of this rank, the words to put before its command): equal, consecutive shares of the cores."""
    if "KMP_AFFINITY" in os.environ:
        raise refused("KMP_AFFINITY is set and binds threads in its own way", "--bind_cores_to_rank",
                      "unset it, or leave the option out")
    if not check_for_numactl_pkg():
        raise refused("--bind_cores_to_rank needs numactl, which is not installed", "this machine",
                      "install it, or leave the option out")
    nodes = get_numa_cores()
    cores = parse_range_list(bind_core_list) if bind_core_list else [core for node in nodes for core in node]
    share = len(cores) // num_local_procs
    if share < 1:
        raise refused(f"there are fewer cores ({len(cores)}) than ranks to bind to them ({num_local_procs})",
                      "--bind_core_list" if bind_core_list else "this machine", "start fewer ranks, or do not bind them")
    mine = cores[share * local_rank:share * (local_rank + 1)]
    command = ["numactl"]
    for index, node in enumerate(nodes):
        if len(nodes) > 1 and set(mine) <= set(node):
            command += ["-m", str(index)]
    return mine, command + ["-C", ",".join(map(str, mine))]
