"""Hosts of a small cluster on this machine: each has its own network, processes, name, /dev/shm and ssh daemon, and shares the files.

    with Cluster(folder, names=["node1", "node2", "node3"]) as hosts:
        hosts["node1"].run("ssh", "node2", "hostname").out                  "node2\\n"; a Result, like tessera_runs.tessera gives
        process = hosts["node1"].start(TESSERA, "train", …)                 a Popen; finish(process) is tessera_runs'
        hosts["node2"].processes(), hosts["node2"].shared_memory()          what is left there
        hosts["node2"].limit(rate="50mbit", delay="2ms", loss="1%")         tc; limit() takes it away
        hosts["node2"].unplug(), .plug_in()                                 frames go nowhere; the host itself sees no change
        hosts["node2"].link_down(), .link_up()                              its own interface
        hosts["node2"].freeze(), .thaw()                                    every process there stops; the kernel goes on
        hosts["node2"].die()                                                every process there is gone, and the network with it

As a fixture (tests/hosts/conftest.py): `hosts`, three of them, fresh for each test; tests of other folders write

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))
    from cluster import Cluster, why_not

`why_not()` says what is missing on this machine, or nothing. The hosts are node1 (10.77.0.1), node2, …, know each other by name, and
reach each other by ssh as root without a question. A host is one process in namespaces of its own, the parent of all that runs there:
when it ends, and it ends with the process that made it, however that ends, the kernel takes away everything: processes, mounts, links.
Ranks find TESSERA_HOST there, and in TMPDIR a folder of the host's own; /tmp and all others are the same on every host.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end"))
from tessera_runs import alive, environment, finish, wait_until  # noqa: E402
from wire import Wire, make_plain  # noqa: E402

NETWORK = "10.77.0"
INTERFACE = "eth0"
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
OWN_TMPDIR = "/run/tmp"
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
QUICK = 30  # seconds, for what takes a fraction of one
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", SSHD: "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client",
            "unshare": "util-linux", "nsenter": "util-linux"}

# What the first process of a host does: $1 is its name, $2 the folder with the cluster's files. SIGCHLD is ignored, so that what
# loses its parent there does not stay as a zombie.
FIRST = f"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/sshd {OWN_TMPDIR}
chmod 755 /run/sshd
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/shadow" /etc/shadow
mount --bind "$2/resolv.conf" /etc/resolv.conf
mount --bind "$2/ssh_config" /etc/ssh/ssh_config
if [ -e ~/.bashrc ]; then mount --bind "$2/empty" ~/.bashrc; fi  # a shell by ssh would read it
hostname "$1"
ip link set lo up
trap '' CHLD
echo ready
exec sleep infinity
"""


def quickly(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=QUICK)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr.strip()}"
    return done.stdout


def why_not():
    """What is missing here to make hosts; empty where nothing is."""
    if os.geteuid() != 0:
        return "hosts of namespaces need root"
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if missing:
        return f"hosts of namespaces need {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "ip", "link", "add", "type", "veth"],
                           capture_output=True, text=True, timeout=QUICK)
    return "" if tried.returncode == 0 else f"this system gives no namespaces, or no links between them: {tried.stderr.strip()}"


def in_namespaces_of(pid, which, *words):
    return ["nsenter", "--target", str(pid), *which, *map(str, words)]


class Host:
    def __init__(self, cluster, number, name):
        self.cluster, self.name, self.address, self.port = cluster, name, f"{NETWORK}.{number + 1}", f"to-{name}"

    def make(self):
        log = open(self.cluster.folder / f"{self.name}.log", "w")
        # --kill-child: the host ends when unshare does, and unshare when its parent's thread does.
        self.unshare = subprocess.Popen(
            ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child", "sh", "-c", FIRST, "sh",
             self.name, str(self.cluster.folder)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            start_new_session=True, preexec_fn=dies_with_parent)
        assert self.unshare.stdout.readline() == "ready\n", (self.cluster.folder / f"{self.name}.log").read_text()
        self.pid = int(Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children").read_text())
        switch = self.cluster.switch
        quickly(*switch.words("ip", "link", "add", self.port, "type", "veth", "peer", "name", INTERFACE, "netns", self.pid))
        switch.connect(self.port)
        self.do("ip", "address", "add", f"{self.address}/24", "dev", INTERFACE)
        self.do("ip", "link", "set", INTERFACE, "up")
        make_plain(self, INTERFACE)
        self.start_sshd()

    def words(self, *words):
        """To run that here."""
        return in_namespaces_of(self.pid, ["--mount", "--uts", "--ipc", "--net", "--pid"], *words)

    def do(self, *words):
        return quickly(*self.words(*words))

    def start_sshd(self):
        options = [f"SetEnv=TESSERA_HOST={self.name} TMPDIR={OWN_TMPDIR} PATH={os.environ['PATH']}"]
        self.do(SSHD, "-f", self.cluster.folder / "sshd_config", "-E", self.cluster.folder / f"{self.name}.sshd.log",
                *[word for option in options for word in ("-o", option)])
        wait_until(lambda: ":0016 " in Path(f"/proc/{self.pid}/net/tcp").read_text(), f"sshd of {self.name}", QUICK)

    def start(self, *words, cwd=None, env=None):
        """A Popen; a process group of its own has it all, for os.killpg."""
        place = {"TESSERA_HOST": self.name, "TMPDIR": OWN_TMPDIR}
        command = self.words("env", "-C", cwd or self.cluster.folder, *words)
        return subprocess.Popen(command, env=environment(**{**place, **(env or {})}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)

    def run(self, *words, timeout=120, **how):
        return finish(self.start(*words, **how), timeout)

    def processes(self):
        """{pid, as seen from outside: command line} of all that runs here but what makes the host one."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid") if alive([self.pid]) else None
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            try:
                if os.readlink(entry / "ns" / "pid") != own or not alive([int(entry.name)]):
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue  # it has ended
            if "[listener]" not in command:
                found[int(entry.name)] = command
        return found

    def ranks(self):
        """{rank: pid} of the ranks that run here."""
        found = {}
        for pid in self.processes():
            try:
                variables = dict(each.split("=", 1) for each in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
                                 if "=" in each)
            except OSError:
                continue
            if "RANK" in variables and "WORLD_SIZE" in variables:
                found.setdefault(int(variables["RANK"]), pid)  # not what it has started
        return found

    def shared_memory(self):
        return self.do("ls", "-A", "/dev/shm").split()

    def sent_bytes(self):
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines():
            if line.split(":")[0].strip() == INTERFACE:
                return int(line.split()[9])
        raise AssertionError(f"{self.name} has no {INTERFACE}")

    def limit(self, rate="", delay="", loss=""):
        """Of what arrives and what leaves. The kernel's netem delays and loses where it has that; else a process does (wire.py)."""
        self.cluster.switch.limit(self, rate, delay, loss)

    def unplug(self):
        quickly(*self.cluster.switch.words("ip", "link", "set", self.port, "nomaster"))

    def plug_in(self):
        self.cluster.switch.connect(self.port)

    def link_down(self):
        self.do("ip", "link", "set", INTERFACE, "down")

    def link_up(self):
        self.do("ip", "link", "set", INTERFACE, "up")

    def freeze(self):
        for _ in range(3):  # what is started meanwhile, too
            for pid in self.everything():
                send(pid, signal.SIGSTOP)

    def thaw(self):
        for pid in self.everything():
            send(pid, signal.SIGCONT)
            if parent := parent_of(pid):  # nsenter stops with what it has started
                send(parent, signal.SIGCONT)

    def everything(self):
        return [self.pid, *self.processes(), *self.listeners()]

    def listeners(self):
        """The ssh daemon itself, which serves new connections."""
        return [int(pid) for pid in subprocess.run(["pgrep", "--ns", str(self.pid), "--nslist", "pid", "-f", r"sshd.*\[listener\]"],
                                                   capture_output=True, text=True, timeout=QUICK).stdout.split()]

    def end_everything(self):
        """But the host itself; its ssh daemon is started again."""
        self.thaw()
        for pid in [*self.processes(), *self.listeners()]:
            send(pid, signal.SIGKILL)
        wait_until(lambda: not self.processes() and not self.listeners(), f"the end of all on {self.name}", QUICK)
        self.start_sshd()

    def die(self):
        send(self.pid, signal.SIGKILL)
        self.unshare.wait(QUICK)


class Switch:
    """What the hosts' links end at: a bridge in a network of its own."""

    def __init__(self):
        self.process = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, text=True, preexec_fn=dies_with_parent, start_new_session=True)
        assert self.process.stdout.readline() == "ready\n"
        self.wires = {}
        quickly(*self.words("ip", "link", "add", "switch", "type", "bridge"))
        quickly(*self.words("ip", "link", "set", "switch", "up"))

    def words(self, *words):
        return in_namespaces_of(self.process.pid, ["--net"], *words)

    def connect(self, port):
        quickly(*self.words("ip", "link", "set", port, "master", "switch"))
        quickly(*self.words("ip", "link", "set", port, "up"))

    def limit(self, host, rate, delay, loss):
        ends = [host.words("tc", "qdisc"), self.words("tc", "qdisc")]
        devices = [INTERFACE, host.port]
        for words, device in zip(ends, devices):
            subprocess.run([*words, "delete", "dev", device, "root"], capture_output=True, timeout=QUICK)  # there may be none
        if host.name in self.wires:
            self.wires.pop(host.name).end()
            self.connect(host.port)
        if (delay or loss) and not self.has_netem():
            self.wires[host.name] = Wire(self, host, delay, loss)
        elif delay or loss:
            for words, device in zip(ends, devices):
                quickly(*words, "add", "dev", device, "root", "netem", *(["delay", delay] if delay else []),
                        *(["loss", loss] if loss else []), *(["rate", rate] if rate else []))
            return
        if rate:
            for words, device in zip(ends, devices):
                quickly(*words, "add", "dev", device, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms")

    def has_netem(self):
        quickly(*self.words("ip", "link", "set", "lo", "up"))
        tried = subprocess.run(self.words("tc", "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms"), capture_output=True,
                               timeout=QUICK)
        return tried.returncode == 0

    def end(self):
        for wire in self.wires.values():
            wire.end()
        end_process(self.process)


class Cluster:
    """The hosts by their names; a context that takes them away."""

    def __init__(self, folder, names=("node1", "node2", "node3")):
        self.folder, self.names, self.stack, self.hosts = Path(folder), list(names), ExitStack(), {}

    def __enter__(self):
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.write_files()
            self.switch = Switch()
            self.stack.callback(self.switch.end)
            for number, name in enumerate(self.names):
                host = self.hosts[name] = Host(self, number, name)
                self.stack.callback(lambda made=host: hasattr(made, "unshare") and end_process(made.unshare))
                host.make()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def __getitem__(self, name):
        return self.hosts[name]

    def __iter__(self):
        return iter(self.hosts.values())

    def write_files(self):
        for key in ("host_key", "key"):
            if not (self.folder / key).exists():
                quickly("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key)
        lines = "".join(f"{NETWORK}.{number + 1} {name}\n" for number, name in enumerate(self.names))
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + lines)
        (self.folder / "empty").touch()
        (self.folder / "shadow").write_text("root:*:19000:0:99999:7:::\n")
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # where nobody answers, and that at once
        (self.folder / "known_hosts").write_text("* " + (self.folder / "host_key.pub").read_text())
        (self.folder / "ssh_config").write_text(
            f"Host *\n  IdentityFile {self.folder}/key\n  UserKnownHostsFile {self.folder}/known_hosts\n"
            "  StrictHostKeyChecking yes\n  IdentitiesOnly yes\n")
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/key.pub\nUsePAM no\nStrictModes no\nPidFile none\n"
            "PermitRootLogin yes\nUseDNS no\nMaxStartups 100\nMaxSessions 100\nListenAddress 0.0.0.0\n")

    def hostfile(self, slots=1, names=None):
        path = self.folder / "hostfile"
        path.write_text("".join(f"{name} slots={slots}\n" for name in names or self.names))
        return path

    def left(self):
        """What runs on the hosts, or lies in their shared memory: {host: [...]}, empty where nothing does."""
        found = {host.name: [*host.processes().values(), *host.shared_memory()] for host in self if alive([host.pid])}
        return {name: things for name, things in found.items() if things}

    def require_nothing_left(self, within):
        end = time.monotonic() + within
        while left := self.left():
            assert time.monotonic() < end, f"left behind after {within} s: {left}"
            time.sleep(0.05)


def dies_with_parent():
    """SIGKILL when the thread that started it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0  # it has ended


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def end_process(process):
    send(process.pid, signal.SIGKILL)
    process.wait(QUICK)
    if process.stdout:
        process.stdout.close()
