"""DeepSpeed's classes of the launchers for many machines; what each starts, launch/remote_commands.h says.

A runner only writes the command; runner.py runs it. `resource_pool` is what the hostfile names, `active_resources` what
the filters left, both {host: slots or number of slots}.
"""

import atexit
import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

from deepspeed.launcher.constants import (
    IMPI_LAUNCHER,
    MPICH_LAUNCHER,
    MVAPICH_LAUNCHER,
    MVAPICH_TMP_HOSTFILE,
    OPENMPI_LAUNCHER,
    PDSH_LAUNCHER,
    SLURM_LAUNCHER,
)
from deepspeed.launcher.request import request_of
from tessera import _launch
from tessera.hostfile import pairs_of


class MultiNodeRunner(ABC):
    """One way to reach the machines."""

    name = "none"

    def __init__(self, args, world_info_base64, resource_pool=None):
        self.args = args
        self.world_info_base64 = world_info_base64
        self.resource_pool = resource_pool or {}
        self.exports = {}
        self.user_arguments = self.parse_user_args()
        self.user_script = args.user_script
        self.validate_args()

    @abstractmethod
    def backend_exists(self):
        """Is the program that reaches the machines installed here."""

    @abstractmethod
    def get_cmd(self, environment, active_resources):
        """The command as a list of words."""

    def add_export(self, key, var):
        """A variable to set on all machines; quoted where a shell would read it differently."""
        self.exports[key.strip()] = _launch.double_quoted(var.strip())

    def parse_user_args(self):
        return self.args.user_args

    def validate_args(self):
        """LaunchError for options that the launcher cannot honour."""


class _OfTable(MultiNodeRunner):
    """One of those that launch/remote_commands.h lists."""

    def __init__(self, args, world_info_base64, resource_pool=None):
        super().__init__(args, world_info_base64, resource_pool)
        self.exports.update(_launch.own_exports(self.name))

    def backend_exists(self):
        return shutil.which(_launch.launcher_program(self.name))

    def validate_args(self):
        _launch.check_remote_options(self.name, self._request())

    def check_slots(self, active_resources):
        """LaunchError if the launcher cannot start ranks on just these."""
        _launch.check_remote_slots(self.name, self._run(active_resources))

    def add_export(self, key, var):
        self.exports[key.strip()] = _launch.quoted_by(self.name, var.strip())

    def get_cmd(self, environment, active_resources):
        command, _, variables = self._command(active_resources)
        environment.update(variables)
        return command

    def _request(self):
        return request_of(self.args, self.args.user_script, self.args.user_args)

    def _command(self, active_resources):
        run = self._run(active_resources)
        run.world_info = self.world_info_base64
        run.exports = list(self.exports.items())
        return _launch.remote_command(self.name, run)

    def _run(self, active_resources):
        return _launch.RemoteRun(self._request(), pairs_of(self.resource_pool or active_resources), pairs_of(active_resources))


class PDSHRunner(_OfTable):
    """A launch.py on each machine, through pdsh and ssh."""

    name = PDSH_LAUNCHER

    def __init__(self, args, world_info_base64):
        super().__init__(args, world_info_base64)

    def parse_user_args(self):
        return [_launch.shell_quote(str(arg)) for arg in self.args.user_args]

    def get_cmd(self, environment, active_resources):
        """(command, command that ends the ranks, environment)"""
        command, end, variables = self._command(active_resources)
        environment.update(variables)
        return command, end, environment

    def _run(self, active_resources):
        run = super()._run(active_resources)
        run.folder = os.path.abspath(".")
        run.node_launcher = [sys.executable, "-u", "-m", "deepspeed.launcher.launch"]
        run.launcher_pid = os.getpid()
        run.pdsh_ssh_arguments = os.environ.get("PDSH_SSH_ARGS_APPEND", "")
        return run


class OpenMPIRunner(_OfTable):
    name = OPENMPI_LAUNCHER

    def _run(self, active_resources):
        run = super()._run(active_resources)
        run.hostfile = self.args.hostfile
        return run


class MPICHRunner(_OfTable):
    """Starts launcher_helper.py, which translates MPICH's names of ranks."""

    name = MPICH_LAUNCHER

    def _run(self, active_resources):
        run = super()._run(active_resources)
        run.rank_starter = [sys.executable, "-u", str(Path(__file__).with_name("launcher_helper.py"))]
        return run


class IMPIRunner(_OfTable):
    """Names every rank on the command line, since Intel MPI sets no local rank."""

    name = IMPI_LAUNCHER


class SlurmRunner(_OfTable):
    """Slurm chooses the slots itself: whole machines can be left out, or the same number of slots on each."""

    name = SLURM_LAUNCHER


class MVAPICHRunner(_OfTable):
    name = MVAPICH_LAUNCHER

    def get_cmd(self, environment, active_resources):
        # A name that nobody else can have made: others may write to /tmp.
        descriptor, self._hostfile = tempfile.mkstemp(prefix=os.path.basename(MVAPICH_TMP_HOSTFILE) + "-")
        atexit.register(lambda: os.path.exists(self._hostfile) and os.unlink(self._hostfile))
        with os.fdopen(descriptor, "w") as hosts:
            hosts.writelines(f"{host}\n" for host in self.resource_pool)
        return super().get_cmd(environment, active_resources)

    def _run(self, active_resources):
        run = super()._run(active_resources)
        run.hostfile = getattr(self, "_hostfile", "")
        return run
