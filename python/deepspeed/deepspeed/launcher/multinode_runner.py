"""Command lines that start a program's ranks on many machines: pdsh, Open MPI, MPICH, Intel MPI, Slurm, MVAPICH.

A runner only writes the command; runner.py runs it. `resource_pool` is what the hostfile names, `active_resources` what
the filters left, both {host: slots or number of slots}.
"""

import atexit
import os
import re
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from shlex import quote, split

from deepspeed.launcher.constants import (
    IMPI_LAUNCHER,
    MPICH_LAUNCHER,
    MVAPICH_LAUNCHER,
    MVAPICH_TMP_HOSTFILE,
    OPENMPI_LAUNCHER,
    PDSH_LAUNCHER,
    PDSH_MAX_FAN_OUT,
    SLURM_LAUNCHER,
)
from tessera.launch_error import refused

_PLAIN = re.compile(r"[\w@%+=:,./-]*\Z", re.ASCII)


def _count(slots):
    return slots if isinstance(slots, int) else len(slots)


class MultiNodeRunner(ABC):
    """One way to reach the machines."""

    name = "none"
    program = ""  # its being installed tells that the launcher is
    filters_hosts = True  # can leave machines or slots out
    needs_equal_slots = False

    def __init__(self, args, world_info_base64, resource_pool=None):
        self.args = args
        self.world_info_base64 = world_info_base64
        self.resource_pool = resource_pool or {}
        self.exports = {}
        self.user_arguments = self.parse_user_args()
        self.user_script = args.user_script
        self.validate_args()

    def backend_exists(self):
        """Is the program that reaches the machines installed here."""
        return shutil.which(self.program)

    def check_slots(self, active_resources):
        """LaunchError if the launcher cannot start ranks on just these."""
        if self.needs_equal_slots:
            self._slots_per_host()

    @abstractmethod
    def get_cmd(self, environment, active_resources):
        """The command as a list of words."""

    def add_export(self, key, var):
        """A variable to set on all machines; quoted where a shell would read it differently."""
        value = var.strip()
        self.exports[key.strip()] = value if _PLAIN.match(value) else f'"{value}"'

    def parse_user_args(self):
        return self.args.user_args

    def validate_args(self):
        if self.filters_hosts:
            return
        if getattr(self.args, "include", "") or getattr(self.args, "exclude", ""):
            raise refused(f"the launcher {self.name} cannot include or exclude machines", "--include or --exclude",
                          "leave them out of the hostfile instead")
        if getattr(self.args, "num_nodes", -1) != -1 or getattr(self.args, "num_gpus", -1) != -1:
            raise refused(f"the launcher {self.name} cannot limit nodes or slots", "--num_nodes or --num_gpus",
                          "edit the hostfile instead")

    def _python(self):
        if self.args.no_python:
            return []
        return [sys.executable, "-u", *(["-m"] if self.args.module else [])]

    def _launcher_args(self):
        return split(self.args.launcher_args)

    def _slots_per_host(self):
        """The number of slots, which has to be the same everywhere."""
        counts = {host: _count(slots) for host, slots in self.resource_pool.items()}
        if len(set(counts.values())) != 1:
            named = ", ".join(f"{host} has {count}" for host, count in counts.items())
            raise refused(f"the launcher {self.name} needs the same number of slots on every machine: {named}",
                          "the hostfile", "give every machine the same number, or use --launcher pdsh")
        return next(iter(counts.values()))

    def _rank_count(self):
        return sum(map(_count, self.resource_pool.values()))


class PDSHRunner(MultiNodeRunner):
    """A launch.py on each machine, through pdsh and ssh."""

    name = PDSH_LAUNCHER
    program = "pdsh"

    def __init__(self, args, world_info_base64):
        super().__init__(args, world_info_base64)

    # A shell on the other side reads the words again, so each is quoted whole: DeepSpeed's double quotes would have it expand
    # what is inside.

    def add_export(self, key, var):
        self.exports[key.strip()] = quote(var.strip())

    def parse_user_args(self):
        return [quote(str(arg)) for arg in self.args.user_args]

    def get_cmd(self, environment, active_resources):
        """(command, command that ends the ranks, environment)"""
        environment["PDSH_RCMD_TYPE"] = "ssh"
        if getattr(self.args, "ssh_port", None) is not None:
            environment["PDSH_SSH_ARGS_APPEND"] = (f"{environment.get('PDSH_SSH_ARGS_APPEND', '')} "
                                                   f"-p {self.args.ssh_port}").strip()
        reach = ["pdsh", "-S", "-f", str(PDSH_MAX_FAN_OUT), "-w", ",".join(active_resources), *self._launcher_args()]
        setting = "".join(f"export {key}={value}; " for key, value in self.exports.items())
        setup = f"source {quote(self.args.venv_script)}; " if getattr(self.args, "venv_script", None) else ""
        launch = [quote(sys.executable), "-u", "-m", "deepspeed.launcher.launch", f"--world_info={self.world_info_base64}",
                  "--node_rank=%n", quote(f"--master_addr={self.args.master_addr}"), f"--master_port={self.args.master_port}"]
        command = [*reach, setup + setting, f"cd {quote(os.path.abspath('.'))};", *launch, *map(quote, self._switches()),
                   quote(self.user_script), *self.user_arguments]
        # The first letter in brackets, so that the pattern does not find the shell that looks for it.
        end = [*reach, "pkill -TERM -f '[-]-world_info=" + self.world_info_base64 + "'"]
        return command, end, environment

    def _switches(self):
        args = self.args
        switches = [f"--{name}" for name in ("no_python", "module", "no_local_rank", "bind_cores_to_rank")
                    if getattr(args, name)]
        if args.bind_core_list:
            switches.append(f"--bind_core_list={args.bind_core_list}")
        if args.save_pid:
            switches += ["--save_pid", str(os.getpid())]
        return [*switches, f"--enable_each_rank_log={args.enable_each_rank_log}"]


class OpenMPIRunner(MultiNodeRunner):
    name = OPENMPI_LAUNCHER
    program = "ompi_info"
    filters_hosts = False

    def __init__(self, args, world_info_base64, resource_pool):
        super().__init__(args, world_info_base64, resource_pool)
        self.add_export("UCX_TLS", "tcp")

    def get_cmd(self, environment, active_resources):
        given = self._launcher_args()
        network = [] if "btl_tcp_if_include" in given else ["--mca", "btl_tcp_if_include", "eth0"]
        exports = [word for key, value in self._all_exports().items() for word in ("-x", f"{key}={value}")]
        return ["mpirun", "-n", str(self._rank_count()), "-hostfile", self.args.hostfile, "--mca", "btl", "^openib",
                *network, *given, *exports, *self._python(), self.user_script, *self.user_arguments]

    def _all_exports(self):
        """With the address of rank 0, if it is known: the ranks then need nothing but Open MPI's own variables."""
        if not self.args.master_addr:
            return self.exports
        return {**self.exports, "MASTER_ADDR": self.args.master_addr, "MASTER_PORT": str(self.args.master_port)}


class MPICHRunner(MultiNodeRunner):
    """Starts launcher_helper.py, which translates MPICH's names of ranks."""

    name = MPICH_LAUNCHER
    program = "mpirun"
    filters_hosts = False
    needs_equal_slots = True

    def get_cmd(self, environment, active_resources):
        per_host = self._slots_per_host()
        helper = str(Path(__file__).with_name("launcher_helper.py"))
        switches = [f"--{name}" for name in ("module", "no_python", "bind_cores_to_rank") if getattr(self.args, name)]
        if self.args.bind_core_list:
            switches += ["--bind_core_list", self.args.bind_core_list]
        exports = [word for key, value in self.exports.items() for word in ("-genv", f"{key}={value}")]
        return ["mpirun", "-n", str(self._rank_count()), "-ppn", str(per_host), *self._launcher_args(), *exports,
                *_mpi_world(self.args, self._rank_count(), per_host), "-hosts", ",".join(self.resource_pool),
                sys.executable, "-u", helper, "--launcher", MPICH_LAUNCHER, *switches, self.user_script,
                *self.user_arguments]


def _mpi_world(args, rank_count, per_host):
    world = {"MASTER_ADDR": args.master_addr, "MASTER_PORT": args.master_port, "WORLD_SIZE": rank_count,
             "LOCAL_SIZE": per_host}
    return [word for key, value in world.items() for word in ("-genv", key, str(value))]


class IMPIRunner(MultiNodeRunner):
    """Names every rank on the command line, since Intel MPI sets no local rank."""

    name = IMPI_LAUNCHER
    program = "mpirun"
    filters_hosts = False
    needs_equal_slots = True

    def get_cmd(self, environment, active_resources):
        per_host, rank_count = self._slots_per_host(), self._rank_count()
        exports = [word for key, value in self.exports.items() for word in ("-genv", key, value)]
        command = ["mpirun", "-ppn", str(per_host), *self._launcher_args(), *exports,
                   *_mpi_world(self.args, rank_count, per_host), "-genv", "I_MPI_PIN", "0", "-hosts",
                   ",".join(self.resource_pool)]
        for rank in range(rank_count):
            local_rank = rank % per_host
            command += [":"] * (rank > 0) + ["-n", "1", "-env", "RANK", str(rank), "-env", "LOCAL_RANK",
                                             str(local_rank), *self._binding(local_rank, per_host), *self._python(),
                                             self.user_script, *self.user_arguments]
        return command

    def _binding(self, local_rank, per_host):
        if not self.args.bind_cores_to_rank:
            return []
        from deepspeed.utils.numa import get_numactl_cmd
        cores, command = get_numactl_cmd(self.args.bind_core_list, per_host, local_rank)
        return ["-env", "OMP_NUM_THREADS", str(len(cores)), *command]


class SlurmRunner(MultiNodeRunner):
    """Slurm chooses the slots itself: whole machines can be left out, or the same number of slots on each."""

    name = SLURM_LAUNCHER
    program = "sinfo"

    def check_slots(self, active_resources):
        for host, slots in active_resources.items():
            if not isinstance(slots, int) and list(slots) != list(range(len(slots))):
                raise refused(f"Slurm cannot choose the slots {slots} of {host}", "--include or --exclude",
                              "leave out whole machines, or keep the first slots of each")
        counts = {host: _count(slots) for host, slots in active_resources.items()}
        if len(set(counts.values())) > 1:
            named = ", ".join(f"{host} has {count}" for host, count in counts.items())
            raise refused(f"Slurm needs the same number of slots on every machine: {named}", "the hostfile, or the filter",
                          "give every machine the same number")

    def get_cmd(self, environment, active_resources):
        self.check_slots(active_resources)
        counts = {host: _count(slots) for host, slots in active_resources.items()}
        args = self.args
        where = []
        if getattr(args, "include", "") or getattr(args, "exclude", ""):
            where += ["--nodelist", ",".join(counts), "--nodes", str(len(counts))]
        elif getattr(args, "num_nodes", -1) > 0:
            where += ["--nodes", str(args.num_nodes)]
        if getattr(args, "num_gpus", -1) > 0:
            where += ["--gpus-per-node", str(args.num_gpus)]
        exports = ",".join(["ALL", *(f"{key}={value}" for key, value in self._all_exports().items())])
        return ["srun", "-n", str(sum(counts.values())), *self._launcher_args(), *where, f"--export={exports}",
                *self._python(), self.user_script, *self.user_arguments]

    _all_exports = OpenMPIRunner._all_exports


class MVAPICHRunner(MultiNodeRunner):
    name = MVAPICH_LAUNCHER
    program = "mpiname"
    filters_hosts = False
    needs_equal_slots = True

    def __init__(self, args, world_info_base64, resource_pool):
        super().__init__(args, world_info_base64, resource_pool)
        for key, value in {
            "MV2_SMP_USE_CMA": "0",  # not allowed in most containers
            "MV2_DEBUG_SHOW_BACKTRACE": "1",
            "MV2_SUPPORT_DL": "1",  # deep learning frameworks load libraries late
            "MV2_ENABLE_AFFINITY": "0",  # it allows one thread a rank
            "MV2_INTER_ALLGATHER_TUNING": "5",
            "MV2_CUDA_USE_NAIVE": "0",
        }.items():
            self.add_export(key, value)

    def get_cmd(self, environment, active_resources):
        per_host = self._slots_per_host()
        # A name that nobody else can have made: others may write to /tmp.
        descriptor, hostfile = tempfile.mkstemp(prefix=os.path.basename(MVAPICH_TMP_HOSTFILE) + "-")
        atexit.register(lambda: os.path.exists(hostfile) and os.unlink(hostfile))
        with os.fdopen(descriptor, "w") as hosts:
            hosts.writelines(f"{host}\n" for host in self.resource_pool)
        exports = [word for key, value in self.exports.items() for word in ("-env", f"{key}={value}")]
        return ["mpirun", "-np", str(self._rank_count()), "-ppn", str(per_host), "--hostfile", hostfile,
                *self._launcher_args(), *exports, *self._python(), self.user_script, *self.user_arguments]
