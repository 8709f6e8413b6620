"""Running `tessera` from tests: run files, the command with a deadline, the numbers that it wrote.

The binary is $TESSERA_BUILD/tessera, by default that of build/release. Every call has a timeout; when it passes, the
process group that the call started is killed and the test fails with what the command had printed.
"""

import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
TESSERA = Path(os.environ.get("TESSERA_BUILD", REPOSITORY / "build" / "release")).resolve() / "tessera"
DEADLINE = 120  # seconds; a run of these tests takes a few

# What a launcher may have left in the environment of the tests themselves.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Result:
    args: list
    code: int
    out: str
    err: str
    seconds: float

    def __str__(self):
        return f"{' '.join(map(str, self.args))}\nexit code {self.code} after {self.seconds:.1f} s\n" \
               f"--- standard output\n{self.out}\n--- standard error\n{self.err}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**extra):
    env = {key: value for key, value in os.environ.items() if key not in RANK_VARIABLES}
    env.update({key: str(value) for key, value in extra.items()})
    return env


def start(*args, cwd=None, env=None, preexec=None, stdin=subprocess.DEVNULL):
    """The command as a running process that leads its own process group; end it with `finish`."""
    return subprocess.Popen([str(TESSERA), *map(str, args)], cwd=cwd, env=environment(**(env or {})), text=True,
                            errors="replace", stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            start_new_session=True, preexec_fn=preexec)


def finish(process, timeout=DEADLINE, said=None):
    begin = time.monotonic()
    try:
        out, err = process.communicate(said, timeout=timeout)
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # the kernel kills the ranks of a launcher that is killed
        except ProcessLookupError:
            pass
        out, err = process.communicate(timeout=30)
        result = Result(process.args, process.returncode, out, err, timeout)
        raise AssertionError(f"not finished within {timeout} s:\n{result}") from None
    return Result(process.args, process.returncode, out, err, time.monotonic() - begin)


def tessera(*args, cwd=None, env=None, preexec=None, timeout=DEADLINE, said=None):
    """`said`: what it reads from standard input, by a pipe."""
    stdin = subprocess.DEVNULL if said is None else subprocess.PIPE
    return finish(start(*args, cwd=cwd, env=env, preexec=preexec, stdin=stdin), timeout, said)


def write_run_file(folder, run):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run, sort_keys=False))
    return path


def train_arguments(run_file, nproc=1, settings=None, resume=None):
    args = ["train", run_file, "--nproc", nproc]
    for key, value in (settings or {}).items():
        args += ["--set", f"{key}={value}"]
    return args + (["--resume", resume] if resume else [])


def train(run_file, nproc=1, settings=None, resume=None, **how):
    """`tessera train`, which must succeed."""
    result = tessera(*train_arguments(run_file, nproc, settings, resume), **how)
    assert result.code == 0, str(result)
    return result


def rows_of_metrics(output):
    return [json.loads(line) for line in (Path(output) / "metrics.jsonl").read_text().splitlines()]


def evaluations(output):
    """The rows of evaluations, in their order."""
    return [row for row in rows_of_metrics(output) if "eval_loss" in row]


def metrics(output):
    """The rows of steps, checked to be those of steps 1, 2, … once each."""
    lines = [row for row in rows_of_metrics(output) if "eval_loss" not in row]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return lines


def losses_and_norms(output, first=1):
    """(loss, grad_norm) of each step as hexadecimal texts, so that a comparison is one of bits and readable."""
    return [(line["loss"].hex(), line["grad_norm"].hex()) for line in metrics(output)[first - 1:]]


def relative_difference(a, b):
    return 0 if a == b else abs(a - b) / abs(b)  # equal also where both are 0: a step whose texts are all empty


def largest_difference(these, those):
    """Largest relative difference of loss or grad_norm between two metrics of as many steps."""
    assert len(these) == len(those) > 0
    return max(relative_difference(a[key], b[key]) for a, b in zip(these, those) for key in ("loss", "grad_norm"))


def descendants(pid):
    """Processes below `pid`, as {pid: command line}."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                parent = int(stat.rsplit(")", 1)[1].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has ended
            children.setdefault(parent, []).append((int(entry.name), command))
    found, todo = {}, [pid]
    while todo:
        for child, command in children.get(todo.pop(), []):
            found[child] = command
            todo.append(child)
    return found


def rank_pids(launcher_pid):
    """{rank: pid} of the ranks that a launcher has started."""
    found = {}
    for pid in descendants(launcher_pid):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"RANK="):
                found[int(variable[5:])] = pid
    return found


def alive(pids):
    """Those of `pids` that still run (a zombie does not)."""
    running = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                running.append(pid)
        except OSError:
            pass
    return running


def wait_until(condition, what, timeout=60):
    end = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < end, f"{what}: not within {timeout} s"
        time.sleep(0.01)
    return value


def steps_done(output):
    path = Path(output) / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0
