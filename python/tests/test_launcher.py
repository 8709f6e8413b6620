"""The deepspeed launcher: which slots, which command lines, and ranks that live and die together."""

import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import ranks
from deepspeed.launcher import launcher_helper, multinode_runner, runner
from tessera.hostfile import decode_slots, encode_slots, filter_slots, parse_hostfile, parse_nodes

SLOTS = {"worker-0": [0, 1, 2, 3], "worker-1": [0, 1, 2, 3]}


# Machines and slots

def test_hostfile():
    assert list(parse_hostfile(["# all", "", "worker-1 slots=2 # fast", "  10.0.0.7 slots=1"]).items()) == [
        ("worker-1", 2), ("10.0.0.7", 1)]


@pytest.mark.parametrize("lines, problem", [
    ([], "names no machine"), (["worker"], "line 1.*'worker'"), (["a slots=1", "a slots=2"], "line 2.*a again"),
    (["a slots=x"], "line 1"), (["two words slots=1"], "line 1")])
def test_hostfiles_that_are_refused(lines, problem):
    with pytest.raises(ValueError, match=problem):
        parse_hostfile(lines)


@pytest.mark.parametrize("include, exclude, left", [
    ("", "", SLOTS),
    ("worker-1:0,3", "", {"worker-1": [0, 3]}),
    ("worker-1@worker-0:2,1,1", "", {"worker-0": [1, 2], "worker-1": [0, 1, 2, 3]}),  # the hostfile's order
    ("worker-0:1@worker-0:0", "", {"worker-0": [0, 1]}),
    ("worker-0:1@worker-0", "", {"worker-0": [0, 1, 2, 3]}),
    ("", "worker-1", {"worker-0": [0, 1, 2, 3]}),
    ("", "worker-0:0,1@worker-1:3", {"worker-0": [2, 3], "worker-1": [0, 1, 2]}),
    ("", "worker-0:0,1,2,3", {"worker-1": [0, 1, 2, 3]}),
])
def test_filters(include, exclude, left):
    found = filter_slots(SLOTS, include, exclude)
    assert list(found.items()) == list(left.items())


@pytest.mark.parametrize("include, exclude", [
    ("a", ""), ("worker-0:4", ""), ("worker-0", "worker-1"), ("worker-0:x", ""), ("worker-0:1:2", "")])
def test_filters_that_are_refused(include, exclude):
    with pytest.raises(ValueError):
        filter_slots(SLOTS, include, exclude)


def test_world_info_goes_there_and_back():
    assert decode_slots(encode_slots(SLOTS)) == SLOTS
    assert decode_slots(encode_slots({"worker-0": 2})) == {"worker-0": [0, 1]}
    assert parse_nodes("a:1@b") == {"a": [1], "b": []}


def test_num_nodes_and_gpus_with_a_filter_are_refused():
    for words in ("--num_gpus 1 -i localhost train.py".split(), "--num_nodes 1 -e localhost train.py".split()):
        with pytest.raises(ValueError, match="--include and --exclude"):
            runner.main(words)


def test_everything_after_the_script_belongs_to_it():
    args = runner.parse_args(["--num_gpus=2", "--launcher_arg", "-v", "train.py", "--b", "--num_gpus", "7", "a b"])
    assert (args.num_gpus, args.launcher_args, args.user_script) == (2, "-v", "train.py")
    assert args.user_args == ["--b", "--num_gpus", "7", "a b"]


# Command lines, compared with those of DeepSpeed 0.19.8

def command_of(kind, *words, pool=SLOTS, active=None):
    args = runner.parse_args([*words, "train.py", "--x", "a b"])
    args.master_addr = "10.0.0.1"
    made = kind(args, "INFO") if kind is multinode_runner.PDSHRunner else kind(args, "INFO", pool)
    made.add_export("KEY", "64(x2)")
    return made.get_cmd({}, active or pool)


def test_pdsh():
    command, end, env = command_of(multinode_runner.PDSHRunner, "--launcher_args", "-q", "--module")
    assert command[:8] == ["pdsh", "-S", "-f", "1024", "-w", "worker-0,worker-1", "-q", 'export KEY="64(x2)"; ']
    assert command[8] == f"cd {os.getcwd()};"
    assert command[9:] == [sys.executable, "-u", "-m", "deepspeed.launcher.launch", "--world_info=INFO",
                           "--node_rank=%n", "--master_addr=10.0.0.1", "--master_port=29500", "--module",
                           "--enable_each_rank_log=None", "train.py", "--x", '"a b"']
    assert end[:7] == command[:7] and env["PDSH_RCMD_TYPE"] == "ssh"


def test_open_mpi():
    command = command_of(multinode_runner.OpenMPIRunner)
    assert command[:11] == ["mpirun", "-n", "8", "-hostfile", "/job/hostfile", "--mca", "btl", "^openib", "--mca",
                            "btl_tcp_if_include", "eth0"]
    assert command[-5:] == [sys.executable, "-u", "train.py", "--x", "a b"]
    assert "eth0" not in command_of(multinode_runner.OpenMPIRunner, "--launcher_args", "--mca btl_tcp_if_include eth1")
    with pytest.raises(ValueError, match="openmpi"):
        command_of(multinode_runner.OpenMPIRunner, "--include", "worker-0")


def test_mpich_and_intel_mpi():
    command = command_of(multinode_runner.MPICHRunner)
    assert command[:5] == ["mpirun", "-n", "8", "-ppn", "4"] and command[-3:] == ["train.py", "--x", "a b"]
    text = " ".join(command_of(multinode_runner.IMPIRunner))
    assert re.findall(r"-env RANK (\d) -env LOCAL_RANK (\d)", text) == [(str(k), str(k % 4)) for k in range(8)]
    with pytest.raises(ValueError, match="same number of slots"):
        command_of(multinode_runner.MPICHRunner, pool={"a": [0], "b": [0, 1]})


def test_slurm():
    command = command_of(multinode_runner.SlurmRunner, "--include", "worker-0:0,1", active={"worker-0": [0, 1]})
    assert command[:7] == ["srun", "-n", "2", "--nodelist", "worker-0", "--nodes", "1"]
    with pytest.raises(ValueError, match=r"\[1, 3\]"):
        command_of(multinode_runner.SlurmRunner, active={"worker-0": [1, 3]})


def test_exports_are_quoted_only_where_a_shell_would_read_them_differently():
    class Dry(multinode_runner.MultiNodeRunner):
        def backend_exists(self):
            return True

        def get_cmd(self, environment, active_resources):
            return []

    made = Dry(SimpleNamespace(user_args=[], user_script="train.py"), "INFO")
    made.add_export("A", "64(x2)")
    made.add_export("PYTHONPATH", " /usr/lib:/a@b ")
    assert made.exports == {"A": '"64(x2)"', "PYTHONPATH": "/usr/lib:/a@b"}


def test_environment_file(tmp_path):
    assert runner._parse_environment(["A=1\n", "\n", "B = x=y\n"], "f") == {"A": "1", "B": "x=y"}
    with pytest.raises(ValueError, match="f:2"):
        runner._parse_environment(["A=1", "nothing"], "f")


def test_ranks_from_mpi_variables():
    found = launcher_helper.env_mapping({"PMI_RANK": "3", "MPI_LOCALRANKID": "1"}, ["PMIX_RANK", "PMI_RANK"],
                                        ["MPI_LOCALRANKID"])
    assert (found["RANK"], found["LOCAL_RANK"]) == ("3", "1")
    with pytest.raises(EnvironmentError, match="mpirun"):
        launcher_helper.env_mapping({}, ["PMI_RANK"], ["MPI_LOCALRANKID"])


# Ranks of this machine

def launched(tmp_path, program, *words, **how):
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = ranks.environment(CUDA_VISIBLE_DEVICES="")
    return subprocess.Popen([sys.executable, "-m", "deepspeed.launcher.runner", "-q", "--master_port",
                             str(ranks.free_port()), "--num_gpus", "2", *how.get("switches", ()), str(script), *words],
                            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path):
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} did not come within 60 s"
        time.sleep(0.05)
    return int(path.read_text())


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_within(pids, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(is_running, pids)):
        time.sleep(0.05)
    return not any(map(is_running, pids))


LONG = """import os, subprocess, sys, time
rank = os.environ["RANK"]
child = subprocess.Popen(["sleep", "300"])
for name, pid in (("rank", os.getpid()), ("child", child.pid)):
    with open(f"{sys.argv[-1]}/{name}{rank}", "w") as file: file.write(str(pid))
while not os.path.exists(f"{sys.argv[-1]}/go"): time.sleep(0.05)
if rank == "1": sys.exit(7)
time.sleep(300)
"""


def test_each_rank_finds_its_place(tmp_path):
    process = launched(tmp_path, "import os, sys\nprint(*(os.environ[k] for k in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', "
                       "'LOCAL_SIZE', 'CROSS_RANK', 'CROSS_SIZE', 'MASTER_ADDR')), *sys.argv[1:], sep='|')",
                       "--deepspeed_config", "a b")
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert sorted(line for line in out.splitlines() if "|" in line) == [
        f"{k}|{k}|2|2|0|1|127.0.0.1|--local_rank={k}|--deepspeed_config|a b" for k in (0, 1)]


@pytest.mark.parametrize("ended_by, code", [
    ("rank", 7), ("SIGTERM", 128 + signal.SIGTERM), ("SIGKILL", -signal.SIGKILL)])
def test_nobody_is_left_behind(tmp_path, ended_by, code):
    """One rank fails, the launcher is told to end, and it is killed: each time ranks and their children go."""
    process = launched(tmp_path, LONG, str(tmp_path))
    pids = [wait_for(tmp_path / f"{name}{rank}") for name in ("rank", "child") for rank in (0, 1)]
    if ended_by == "rank":
        (tmp_path / "go").touch()
    else:
        process.send_signal(getattr(signal, ended_by))
    process.communicate(timeout=60)
    assert process.returncode == code
    assert gone_within(pids, seconds=15)


def test_under_nohup_a_hangup_does_not_end_the_ranks(tmp_path):
    script = tmp_path / "quick.py"
    script.write_text("import os, sys, time\nopen(f'{sys.argv[-1]}/here{os.environ[\"RANK\"]}', 'w').write('1')\n"
                      "time.sleep(1)\n")
    words = [sys.executable, "-m", "deepspeed.launcher.runner", "-q", "--num_gpus", "2", str(script), str(tmp_path)]
    process = subprocess.Popen(["nohup", *words], env=ranks.environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for rank in (0, 1):
        wait_for(tmp_path / f"here{rank}")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_log_for_each_rank(tmp_path):
    process = launched(tmp_path, "import os\nprint('this is', os.environ['RANK'])",
                       switches=["--enable_each_rank_log", str(tmp_path / "logs"), "--no_local_rank"])
    process.communicate(timeout=60)
    logs = sorted((tmp_path / "logs").iterdir(), key=lambda path: path.name[-5:])
    assert [path.read_text() for path in logs] == ["this is 0\n", "this is 1\n"]
