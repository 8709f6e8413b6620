"""The deepspeed launcher: which slots, which command lines, and ranks that live and die together."""

import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ranks
from deepspeed.launcher import launch, launcher_helper, multinode_runner, runner, this_machine
from tessera.hostfile import decode_slots, encode_slots, filter_slots, parse_hostfile, parse_nodes
from tessera.launch_error import LaunchError

SLOTS = {"worker-0": [0, 1, 2, 3], "worker-1": [0, 1, 2, 3]}


# Machines and slots

def test_hostfile():
    assert list(parse_hostfile(["# all", "", "worker-1 slots=2 # fast", "  10.0.0.7 slots=1"]).items()) == [
        ("worker-1", 2), ("10.0.0.7", 1)]


@pytest.mark.parametrize("lines, problem", [
    ([], "names no machine"), (["worker"], "line 1.*'worker'"), (["a slots=1", "a slots=2"], "line 2.*a again"),
    (["a slots=x"], "line 1"), (["two words slots=1"], "line 1"), (["a slots=two"], "'a slots=two'"),
    (["a slots=2x"], "line 1"), (["# all", "a slots=0"], "line 2.*no slot"),
    (["a slots=999999999999"], "line 1"), (["a slots=" + "9" * 5000], "line 1"), (["a slots=٣"], "line 1")])
def test_hostfiles_that_are_refused(lines, problem):
    with pytest.raises(LaunchError, match=problem):
        parse_hostfile(lines)


def test_hostfiles_of_any_bytes(tmp_path):
    """Read, or refused with three lines; tests/fuzz has the readers that are written in C++."""
    chance = random.Random(1)
    seed = b"# all\nworker-0 slots=4\n\n  10.0.0.7 slots=16 # fast\n"
    outcomes = set()
    for _ in range(3000):
        data = bytearray(seed)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            data[at:at + chance.randint(0, 3)] = chance.choice([b"", b"\xff", b"\xc3", b"9" * 30, b"\n", b" slots=", bytes([chance.randrange(256)])])
        (tmp_path / "hosts").write_bytes(data)
        try:
            outcomes.add(type(runner.fetch_hostfile(str(tmp_path / "hosts"))))
        except LaunchError as error:
            outcomes.add(type(error))
    assert LaunchError in outcomes and len(outcomes) == 2


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


# What is refused: three lines on standard error, and exit code 2

@pytest.fixture
def said(capsys, tmp_path, monkeypatch):
    """said(words): what the launcher prints of a command line that it refuses; in a folder with train.py and hosts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "train.py").write_text("print('it ran')")
    (tmp_path / "hosts").write_text("worker-0 slots=2\nworker-1 slots=4\n")

    def ask(words, program=runner.main):
        asked = []
        monkeypatch.setattr(runner, "_ssh", lambda *of: asked.append(of))
        with pytest.raises(SystemExit) as ended:
            program(words.split())
        out, error = capsys.readouterr()
        assert ended.value.code == 2 and not asked and "it ran" not in out
        return error

    return ask


@pytest.mark.parametrize("words, what, fix", [
    ("", "no program to run", "deepspeed [options] train.py"),
    ("--num_gpus 2", "no program to run", "train.py"),
    ("missing.py", "script 'missing.py' not found", "path"),
    ("--no_python missing-program", "program 'missing-program' not found", "path"),
    ("--num_gpu2 2 train.py", "unknown option '--num_gpu2'", "did you mean --num_gpus?"),
    ("--colour=red train.py", "unknown option '--colour'", "deepspeed --help"),
    ("--num_gpus two train.py", "--num_gpus is 'two', not a whole number", "--help"),
    ("--num_gpus 0 train.py", "--num_gpus is 0", "at least 1"),
    ("--num_nodes=-7 train.py", "--num_nodes is -7", "--help"),
    ("--num_gpus 1 -i localhost train.py", "--num_nodes and --num_gpus cannot be used with --include", "only the filter"),
    ("--num_nodes 1 -e localhost train.py", "--num_nodes and --num_gpus cannot be used with --include", "only the filter"),
    ("-i localhost -e localhost:0 train.py", "--include and --exclude are both given", "keep one"),
    ("--num_nodes 2 train.py", "--num_nodes is 2, and there is no hostfile /job/hostfile", "-H"),
    ("--include worker-0 train.py", "--include names 'worker-0', and there is no hostfile", "-H"),
    ("--include localhost:0-3 train.py", "'localhost:0-3' is not a machine filter", "worker-0:0,2"),
    ("--include localhost: train.py", "'localhost:' is not a machine filter", "worker-0:0,2"),
    ("--exclude localhost:99 train.py", "localhost has no slot 99", "its slots are numbered 0"),
    ("--master_port 99999 train.py", "--master_port is 99999: it must be between 1 and 65535", "--help"),
    ("--master_port http train.py", "--master_port is 'http', not a whole number", "--help"),
    ("--node_rank 1 train.py", "--node_rank only makes sense with --no_ssh", "--no_ssh"),
    ("--bind_core_list 0-1 train.py", "only makes sense with --bind_cores_to_rank", "--bind_cores_to_rank"),
    ("--bind_cores_to_rank --bind_core_list 3-1 train.py", "'3-1' ends before it starts", "write 1-3"),
    ("--bind_cores_to_rank --bind_core_list 0;1 train.py", "'0;1' is not a core or a range of cores", "3 or 2-4"),
    ("--log_level loud train.py", "--log_level is 'loud'", "debug, info"),
    ("--launcher pdhs train.py", "--launcher is 'pdhs'", "did you mean pdsh?"),
    ("--launcher nope --hostfile hosts train.py", "--launcher is 'nope'", "pdsh, openmpi, mpich, impi, slurm, mvapich"),
    ("--hostfile no/hosts train.py", "there is no hostfile no/hosts", "worker-0 slots=4"),
    ("--hostfile hosts --num_nodes 3 train.py", "--num_nodes is 3, but the hostfile names 2", "at most 2"),
    ("--hostfile hosts --num_gpus 3 train.py", "--num_gpus is 3, and worker-0 has 2 slots", "at most 2"),
    ("--hostfile hosts --include worker-2 train.py", "'worker-2' is not in the list of machines", "worker-0, worker-1"),
    ("--hostfile hosts --include worker-1 train.py", "'worker-1' is not this machine", "--force_multi"),
    ("--hostfile hosts --exclude worker-0@worker-1 train.py", "the filter leaves no slot", "exclude fewer slots"),
    ("--hostfile hosts --no_ssh --master_addr a train.py", "--no_ssh needs --node_rank", "0 to 1"),
    ("--hostfile hosts --no_ssh --node_rank 2 --master_addr a train.py",
     "--node_rank is 2, and the machines are worker-0, worker-1", "0 to 1"),
    ("--hostfile hosts --launcher mpich train.py", "same number of slots on every machine: worker-0 has 2", "the same number"),
    ("--hostfile hosts --launcher openmpi --include worker-0@worker-1 train.py", "openmpi cannot include", "hostfile"),
    ("--hostfile hosts --launcher slurm --include worker-0:1@worker-1:0 train.py", "Slurm cannot choose the slots [1]",
     "whole machines"),
    ("--autotuning tune train.py", "deepspeed.autotuning is not in Tessera yet", "leave the option out"),
    ("--elastic_training --min_elastic_nodes 1 train.py", "Elastic training is not in Tessera", "leave the option out"),
])
def test_a_command_line_that_is_refused_says_what_and_how_to_fix_it(said, words, what, fix):
    error = said(words)
    first, *rest = error.splitlines()
    assert first.startswith("error: ") and what in first
    assert rest[-1].startswith("  fix:   ") and fix in rest[-1]
    assert "Traceback" not in error


@pytest.mark.parametrize("text, where", [
    ("worker-0 slots=two", "hosts:1"), ("# none", "hosts"), ("a slots=1\n\na slots=2", "hosts:3")])
def test_a_wrong_hostfile_is_named_with_its_line(said, tmp_path, text, where):
    (tmp_path / "hosts").write_text(text)
    assert f"  where: {where}\n" in said("--hostfile hosts train.py")


def test_the_program_that_a_launcher_needs_is_named(said, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--launcher slurm needs the program sinfo" in said("--hostfile hosts --launcher slurm --num_gpus 2 train.py")


def test_more_gpus_than_the_driver_knows_are_refused(said, tmp_path, monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    for number in range(2):
        (tmp_path / "gpus" / str(number)).mkdir(parents=True)
    monkeypatch.setattr(this_machine, "_DRIVER", str(tmp_path / "gpus"))
    assert "--num_gpus is 3, and this machine has 2 GPUs" in said("--num_gpus 3 train.py")


def test_devices_that_are_not_numbers_are_named_by_their_variable(said, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937")
    assert "CUDA_VISIBLE_DEVICES is 'GPU-8932f937', which does not name slots" in said("train.py")


def test_a_port_that_is_taken_is_refused_before_anything_starts(said):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} is in use" in said(f"--num_gpus 2 --master_port {port} train.py")


def test_launch_itself_refuses_in_the_same_form(said, tmp_path):
    info = encode_slots({"a": [0], "b": [0]})
    assert "--world_info is missing" in said("train.py", launch.main)
    assert "--world_info was not written by the deepspeed launcher" in said("--world_info=x train.py", launch.main)
    assert "--node_rank is 2, but there are 2 machines" in said(f"--world_info={info} --node_rank=2 train.py", launch.main)
    assert "--module and --no_python" in said(f"--world_info={info} --module --no_python train.py", launch.main)
    (tmp_path / "file").touch()
    assert "cannot write logs to file/logs" in said(
        f"--world_info={info} --enable_each_rank_log file/logs train.py", launch.main)


def test_a_refusal_is_not_a_traceback_in_a_process_of_its_own():
    ended = subprocess.run([sys.executable, "-m", "deepspeed.launcher.runner", "--launcher", "nope", "train.py"],
                           env=ranks.environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[0] == "error: --launcher is 'nope'"


@pytest.mark.parametrize("host, here", [("localhost", True), ("127.0.0.1", True), (socket.gethostname(), True),
                                        ("192.0.2.1", False), ("no-such-machine.invalid", False)])
def test_this_machine_knows_its_names(host, here):
    assert this_machine.is_this_machine(host) == here


@pytest.mark.parametrize("words, line", [
    ("--num_gpus 1", "starting 1 rank of"),
    ("--num_gpus 2", "starting 2 ranks of"),
    ("--hostfile hosts --no_ssh --node_rank 0 --master_addr 127.0.0.1", "starting 2 of 6 ranks of"),
])
def test_the_launcher_says_how_many_ranks_start_here_and_in_all(said, monkeypatch, words, line):
    lines = []
    monkeypatch.setattr(runner.logger, "info", lines.append)
    monkeypatch.setattr(launch, "run", lambda args: 0)
    runner.main([*words.split(), "--master_port", str(ranks.free_port()), "train.py"])
    assert [line in each for each in lines] == [True]


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
    assert command[:8] == ["pdsh", "-S", "-f", "1024", "-w", "worker-0,worker-1", "-q", "export KEY='64(x2)'; "]
    assert command[8] == f"cd {os.getcwd()};"
    assert command[9:] == [sys.executable, "-u", "-m", "deepspeed.launcher.launch", "--world_info=INFO",
                           "--node_rank=%n", "--master_addr=10.0.0.1", "--master_port=29500", "--module",
                           "--enable_each_rank_log=None", "train.py", "--x", "'a b'"]
    assert end[:7] == command[:7] and env["PDSH_RCMD_TYPE"] == "ssh"


def test_what_a_shell_on_the_other_side_would_run(tmp_path):
    """Words, values and paths arrive as they were given, whatever they hold."""
    words = ["$(touch ran)", "`touch ran`", "a;touch ran", "it's", "\"double\" $HOME", "back\\slash", "", "new\nline", "*"]
    args = runner.parse_args(["my script;touch ran.py", *words])
    args.master_addr = "10.0.0.1;touch ran"
    made = multinode_runner.PDSHRunner(args, "INFO")
    made.add_export("KEY", "$(touch ran) 'x'")
    command, _, _ = made.get_cmd({}, SLOTS)
    show = tmp_path / "python"  # in place of the interpreter
    show.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv, os.environ['KEY'], os.getcwd()]))\n")
    show.chmod(0o755)
    at = next(number for number, word in enumerate(command) if word.startswith("export "))
    line = " ".join(command[at:]).replace(shlex.quote(sys.executable), str(show), 1)
    arguments, value, folder = json.loads(subprocess.run(["sh", "-c", line], check=True, capture_output=True, text=True).stdout)
    assert arguments[-len(words) - 1:] == ["my script;touch ran.py", *words]
    assert "--master_addr=10.0.0.1;touch ran" in arguments
    assert value == "$(touch ran) 'x'" and folder == os.getcwd()
    assert not Path("ran").exists()


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


# Who may join

def test_ranks_of_one_machine_share_a_new_secret(tmp_path):
    show = "import os; os.write(1, f\"secret: {os.environ['TESSERA_SECRET']}\\n\".encode())"  # one write a rank
    said = [re.findall(r"secret: ([0-9a-f]{64})$", launched(tmp_path, show).communicate(timeout=60)[0], re.MULTILINE)
            for _ in range(2)]
    assert all(len(secrets) == 2 and len(set(secrets)) == 1 for secrets in said), said
    assert said[0] != said[1]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_init_distributed_refuses_a_rank_that_lacks_the_secret(tmp_path, backend):
    program = tmp_path / "program.py"
    program.write_text(f"""import os, deepspeed, torch
os.environ["TESSERA_SECRET"] = "the secret of rank " + os.environ[os.environ["SECRET_OF"]]
deepspeed.init_distributed({backend!r})
torch.distributed.barrier()
print("met", torch.distributed.get_world_size())
""")
    assert "met 2" in ranks.run_ranks(program, SECRET_OF="WORLD_SIZE", timeout=60)
    text = program.read_text().replace("torch\n", "torch, datetime\n", 1)
    program.write_text(text.replace(f"{backend!r})", f"{backend!r}, timeout=datetime.timedelta(seconds=5))"))
    said = ranks.run_ranks(program, SECRET_OF="RANK", timeout=60, fails=True)
    assert "rank 1 has a secret of the run, and rank 0 another one or none" in said
    assert "refused a connection from 127.0.0.1 to the run's store" in said
    assert "met 2" not in said


def test_a_secret_is_not_written_on_command_lines(monkeypatch):
    monkeypatch.setenv("TESSERA_SECRET_FILE", "/home/me/secret")
    assert runner._exports(os.environ)["TESSERA_SECRET_FILE"] == "/home/me/secret"
    monkeypatch.setenv("TESSERA_SECRET", "0123456789abcdef")
    with pytest.raises(ValueError, match="TESSERA_SECRET would be on the command lines"):
        runner._exports(os.environ)


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
    # One write a rank: what print() writes in pieces, two ranks mix.
    process = launched(tmp_path, "import os, sys\nwords = [os.environ[k] for k in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', "
                       "'LOCAL_SIZE', 'CROSS_RANK', 'CROSS_SIZE', 'MASTER_ADDR')] + sys.argv[1:]\n"
                       "os.write(1, ('|'.join(words) + '\\n').encode())", "--deepspeed_config", "a b")
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
