"""What starts ranks on many machines, word by word, beside what DeepSpeed's own launcher writes for the same arguments.

Of pdsh the words are those that the shell on the other side makes of them. Where the two differ on purpose, it stands in ADDED or CHANGED.
"""

import json
import re
import shlex

import pytest
from peers import needs_deepspeed, run_deepspeed_for_json
from ranks import ROOT, run_for_json

pytestmark = needs_deepspeed

PROGRAM = ROOT / "tests" / "python" / "remote_commands.py"
ADDRESS = ["--hostfile", "hosts", "--master_addr", "10.0.0.1", "--master_port", "29501"]
SCRIPT = ["train.py", "--lr", "1e-3", "--name", "two words", "--deepspeed", "--deepspeed_config", "ds.json"]
OPTIONS = {
    "plain": [],
    "exported": [],
    "launcher's arguments": ["--launcher_args", "-x 5 --one 'a b'"],
    "module": ["--module"],
    "no python": ["--no_python"],
    "no local rank": ["--no_local_rank"],
    "a log for each rank": ["--enable_each_rank_log", "logs"],
    "port of ssh": ["--ssh_port", "2222"],
    "include": ["--include", "worker-0@worker-2"],
    "exclude": ["--exclude", "worker-1"],
    "include slots": ["--include", "worker-0:1@worker-2"],
    "hosts": ["--num_nodes", "2"],
    "slots": ["--num_gpus", "1"],
    "both": ["--num_nodes", "2", "--num_gpus", "1"],
    "pid": ["--save_pid"],
    "environment of a script": ["--venv_script", "/opt/venv/activate"],
    "bound": ["--bind_cores_to_rank"],
}
EXPORTS = {"exported": {"PYTHONPATH": "/a:/b", "NCCL_DEBUG": "INFO", "UCX_NOTE": "two words"}}
LAUNCHERS = ["pdsh", "openmpi", "mpich", "impi", "slurm", "mvapich"]
CASES = [(launcher, name) for launcher in LAUNCHERS for name in OPTIONS]

# What ours says beside: where rank 0 is, to ranks that find only the launcher's own variables.
ADDED = {
    "openmpi": r"-x\nMASTER_ADDR=10.0.0.1\n-x\nMASTER_PORT=29501\n",
    "slurm": r",MASTER_ADDR=10.0.0.1,MASTER_PORT=29501",
}
# (launcher, options): what of DeepSpeed's words is replaced in ours, and by what. It forgets an option of its own, or writes what cannot run.
CHANGED = {
    ("pdsh", "bound"): (r"(?=--enable_each_rank_log)", "--bind_cores_to_rank\n"),
    ("mpich", "bound"): (r"(?<=--launcher\nmpich\n)", "--bind_cores_to_rank\n"),
    ("mpich", "module"): (r"-m\n<helper>", "<helper>"),  # a file is no module
    ("mpich", "no python"): (r"<helper>", "<python>\n-u\n<helper>"),  # nor can it be executed
    ("slurm", "module"): (r"<python>\n-u", "<python>\n-u\n-m"),
    ("slurm", "no python"): (r"<python>\n-u\n", ""),
    ("slurm", "exported"): (r',UCX_NOTE="two words"', ""),  # srun would take the quotes for part of the value
    # One number for all ranks, where each rank's own follows from its cores.
    ("impi", "bound"): (r"-genv\n(OMP_NUM_THREADS\n\d+\n)((?s:.*))", lambda all: re.sub(r"(?<=LOCAL_RANK\n)\d+\n", rf"\g<0>-env\n{all[1]}", all[2])),
}
# … and what ours says by its environment instead, which --export=ALL hands on.
BY_ENVIRONMENT = {("slurm", "exported"): {"UCX_NOTE": "two words"}}


def words_of(launcher, made):
    words = shlex.split(" ".join(made["words"])) if launcher == "pdsh" else made["words"]
    text = "\n".join(words)
    text = re.sub(r"\S*/launcher_helper\.py", "<helper>", text)
    return re.sub(r"\S*/deepspeed_mvapich_hostfile\S*", "<hostfile>", text)


def case_of(launcher, name):
    return {"launcher": launcher, "options": ["--launcher", launcher, *ADDRESS, *OPTIONS[name], *SCRIPT], "exports": EXPORTS.get(name, {})}


@pytest.fixture(scope="module")
def made():
    """{(launcher, name): (ours, theirs)}"""
    cases = json.dumps([case_of(*case) for case in CASES])
    ours = run_for_json(PROGRAM, cases, count=1)
    theirs = run_deepspeed_for_json(PROGRAM, cases, count=1)
    return dict(zip(CASES, zip(ours, theirs, strict=True), strict=True))


@pytest.mark.parametrize("launcher, name", CASES)
def test_the_words_are_those_of_deepspeed(made, launcher, name):
    ours, theirs = made[launcher, name]
    if "refused" in theirs:
        assert "refused" in ours
        return
    expected, got = words_of(launcher, theirs), words_of(launcher, ours)
    if launcher in ADDED:
        got, count = re.subn(ADDED[launcher], "", got)
        assert count == 1
    if (launcher, name) in CHANGED:
        changed = re.sub(*CHANGED[launcher, name], expected)
        assert changed != expected
        expected = changed
    assert got.split("\n") == expected.split("\n")
    same = {key: value.strip() for key, value in theirs["environment"].items()}
    assert ours["environment"] == {**same, **BY_ENVIRONMENT.get((launcher, name), {})}


def test_every_launcher_is_compared(made):
    written = [launcher for launcher, name in CASES if "refused" not in made[launcher, name][1]]
    assert min(written.count(launcher) for launcher in LAUNCHERS) >= 10
