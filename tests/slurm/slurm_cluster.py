"""A cluster of Slurm's on this machine: munged, slurmctld and a slurmd for each of three nodes, with keys, ports and folders of
their own, which a test starts and ends. A node has a mount namespace of its own, where every node's name leads to the loopback,
and a host name of its own; ranks take each for a host (TESSERA_HOST). Needs root, Debian's slurm-wlm and munge, and unshare."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tessera_runs
from tessera_runs import free_port

NODES = ["node1", "node2", "node3"]
PYTHON = [sys.executable, "-u"]
PACKAGES = f"{tessera_runs.TESSERA.parent / 'python'}:{tessera_runs.REPOSITORY / 'python' / 'deepspeed'}"
CPUS = 4  # of a node, as Slurm counts them; the cores of this machine are everybody's
PROGRAMS = ["munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "unshare"]
IN_NAMESPACES = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'

CONFIGURATION = """\
ClusterName=tessera
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={control}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
TaskPlugin=task/none
TaskProlog={folder}/prolog
ProctrackType=proctrack/linuxproc
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
InactiveLimit=0
KillWait=20
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def wait_until(condition, what, timeout=120):
    """`what`: called for the words of a failure. Looks seldom, since it asks Slurm."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not within {timeout} s: {what()}"
        time.sleep(0.2)


def obstacle():
    """Why there can be no cluster here; None: there can."""
    if os.geteuid() != 0:
        return "a cluster of Slurm's needs root"
    missing = [program for program in PROGRAMS if shutil.which(program, path=search_path()) is None]
    if missing:
        return f"there is no {', '.join(missing)} here (Debian's slurm-wlm, munge and util-linux)"
    tried = subprocess.run(["unshare", "-m", "-u", "true"], capture_output=True, text=True, timeout=20)
    return None if tried.returncode == 0 else f"this system gives no namespaces: {tried.stderr.strip()}"


def search_path():
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


class Cluster:
    def __init__(self):
        # munge refuses sockets below folders that others may write to, but for /tmp itself.
        self.folder = Path(tempfile.mkdtemp(prefix="tessera-slurm-", dir="/tmp"))
        self.servers = []
        self._configure()

    def _configure(self):
        (self.folder / "munge.key").write_bytes(os.urandom(64))
        (self.folder / "munge.key").chmod(0o400)
        (self.folder / "hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in ["localhost", "login", *NODES]))
        (self.folder / "prolog").write_text('#!/bin/sh\necho "export TESSERA_HOST=$SLURMD_NODENAME"\n')
        (self.folder / "prolog").chmod(0o755)
        for name in ["state", *NODES]:
            (self.folder / name).mkdir()
        for device in range(CPUS):  # Slurm looks whether they are there, and no more
            os.mknod(self.folder / f"gpu{device}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"NodeName={','.join(NODES)} Name=gpu File={self.folder}/gpu[0-{CPUS - 1}]\n")
        nodes = "\n".join(f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={free_port()} CPUs={CPUS} Gres=gpu:{CPUS}"
                          for name in NODES)
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(control=free_port(), folder=self.folder, nodes=nodes))

    def start(self):
        self._serve("munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket",
                    f"--key-file={self.folder}/munge.key", f"--pid-file={self.folder}/munged.pid",
                    f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munge.seed")
        wait_until((self.folder / "munge.socket").exists, lambda: f"munged's socket\n{self.said()}")
        self._serve("slurmctld", "slurmctld", "-D", "-c")
        for name in NODES:
            self._serve(name, *self.on(name), "slurmd", "-D", "-N", name)
        wait_until(lambda: self.asked("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * len(NODES),
                   lambda: f"nodes that are idle\n{self.said()}", timeout=60)

    def _serve(self, name, *command):
        with open(self.folder / f"{name}.out", "w") as output:
            self.servers.append(subprocess.Popen([str(word) for word in command], env=self.environment(), stdin=subprocess.DEVNULL,
                                                 stdout=output, stderr=output, start_new_session=True))

    def on(self, host):
        """The words that run a command as on that host."""
        return ["unshare", "-m", "-u", "sh", "-c", IN_NAMESPACES, "sh", str(self.folder / "hosts"), host]

    def environment(self, **extra):
        """Without what a job or a launcher around the tests may have left."""
        kept = {name: value for name, value in os.environ.items()
                if not re.match(r"(SLURM|SBATCH|SALLOC|OMPI|PMI)", name) and name not in tessera_runs.RANK_VARIABLES}
        path = os.pathsep.join([str(tessera_runs.TESSERA.parent), search_path()])
        kept |= {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        return kept | {name: str(value) for name, value in extra.items()}

    def run(self, *command, cwd=None, code=0, timeout=120, **extra):
        """A command on a login node; a Result, of which the exit code has been looked at."""
        started = subprocess.Popen([*self.on("login"), *map(str, command)], cwd=cwd, env=self.environment(**extra), text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True)
        result = tessera_runs.finish(started, timeout)
        assert result.code == code, f"{result}\n{self.said()}"
        return result

    def asked(self, *command):
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=60).stdout

    def submit(self, *options, cwd, **extra):
        """The number of the job that sbatch makes."""
        return self.run("sbatch", "--parsable", *options, cwd=cwd, **extra).out.strip()

    def state(self, job):
        """{"JobState": "COMPLETED", "ExitCode": "0:0", "Restarts": "0", …} of a job, or of one of an array's: "3_1"."""
        said = self.asked("scontrol", "-o", "show", "job", job).splitlines()
        return dict(word.split("=", 1) for word in said[0].split() if "=" in word) if said else {}

    def wait_for(self, job, timeout=120):
        """Its state, once it has ended for good."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_until(lambda: self.state(job).get("JobState") in ended, lambda: f"the end of job {job}: {self.state(job)}\n{self.said()}",
                   timeout)
        return self.state(job)

    def said(self):
        """The ends of the servers' logs, for a failure."""
        logs = sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out"))
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def stop(self):
        self.asked("scancel", "--user=root", "--signal=KILL", "--full")
        self.asked("scancel", "--user=root")
        end = time.monotonic() + 20
        while self.asked("squeue", "-h").strip() and time.monotonic() < end:
            time.sleep(0.2)
        for server in reversed(self.servers):
            server.terminate()
        for server in reversed(self.servers):
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)
