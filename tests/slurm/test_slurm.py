"""Runs on a cluster of Slurm's with three nodes, which slurm_cluster.py starts on this machine: what srun, sbatch and Tessera's own
launcher start trains as ranks of one host do."""

import re
import subprocess

import pytest
from slurm_cluster import PACKAGES, PYTHON
from tessera_runs import largest_difference, metrics, steps_done, tessera, train, wait_until, write_run_file

STEPS = 6


@pytest.fixture
def run_file(tiny_run, tmp_path):
    """Stage 2, a batch of 30, which 2, 3 and 5 ranks share evenly."""
    deepspeed = {**tiny_run["deepspeed"], "train_batch_size": 30, "zero_optimization": {"stage": 2}}
    return write_run_file(tmp_path, {**tiny_run, "training": {"max_steps": STEPS, "seed": 42}, "deepspeed": deepspeed})


def trained_here(run_file, ranks, folder="here", **settings):
    train(run_file, ranks, {"output": run_file.parent / folder, **settings}, cwd=run_file.parent)
    return metrics(run_file.parent / folder)


def assert_as_here(run_file, ranks, output="out", **settings):
    there = metrics(run_file.parent / output)
    assert largest_difference(there, trained_here(run_file, ranks, **settings)) < 1e-5


@pytest.mark.parametrize("nodes, tasks, counts", [(3, 3, [1, 1, 1]), (3, 5, [3, 1, 1])])
def test_srun_starts_ranks(cluster, run_file, nodes, tasks, counts):
    """Also where nodes have unequal numbers of them."""
    said = cluster.run("srun", f"--nodes={nodes}", f"--ntasks={tasks}", "sh", "-c", "hostname; tessera train run.yaml 2>&1",
                       cwd=run_file.parent)
    assert [said.out.splitlines().count(f"node{node + 1}") for node in range(nodes)] == counts
    assert f"ZeRO stage 2, {tasks} ranks" in said.out
    assert_as_here(run_file, tasks)


def test_srun_starts_ranks_of_programs_for_deepspeed(cluster, tmp_path):
    """They find themselves when they call init_distributed, and torch's variables are there from then on."""
    (tmp_path / "program.py").write_text("""
import os, socket
import deepspeed, torch
deepspeed.init_distributed()
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR")
assert os.environ["SLURM_PROCID"] == str(rank)
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
          "optimizer": {"type": "SGD", "params": {"lr": 0.5}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(2):
    loss = engine(torch.full((1, 4), 0.1 * (rank + 1))).square().mean()
    engine.backward(loss)
    engine.step()
total = loss.detach().clone()
torch.distributed.all_reduce(total)
print("place", socket.gethostname(), *(os.environ[name] for name in names), f"{total.item():.6f}", flush=True)
""")
    said = cluster.run("srun", "--nodes=2", "--ntasks=3", *PYTHON, "program.py", cwd=tmp_path, PYTHONPATH=PACKAGES)
    places = sorted(line.split()[1:] for line in said.out.splitlines() if line.startswith("place "))
    assert [place[:-1] for place in places] == [["node1", "0", "3", "0", "2", "0", "2", "node1"],
                                                ["node1", "1", "3", "1", "2", "0", "2", "node1"],
                                                ["node2", "2", "3", "0", "1", "1", "2", "node1"]]
    assert {place[-1] for place in places} == {summed_loss_of_three_ranks()}


def summed_loss_of_three_ranks():
    """What the program above has after two steps, in plain PyTorch."""
    import torch
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        losses = [model(torch.full((1, 4), 0.1 * (rank + 1))).square().mean() for rank in range(3)]
        optimizer.zero_grad()
        (sum(losses) / 3).backward()
        optimizer.step()
    return f"{sum(losses).item():.6f}"


SHOW = 'echo "$(hostname) $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $TESSERA_LIST"'


def test_the_launcher_starts_a_program_in_a_job_and_asks_for_one(cluster, tmp_path):
    """What a value holds that srun's own --export would cut arrives whole."""
    lines = ["node1 0 3 0 2 node1 a,b c", "node1 1 3 1 2 node1 a,b c", "node2 2 3 0 1 node1 a,b c"]
    said = cluster.run("salloc", "--nodes=2", "--ntasks=3", "tessera", "launch", "--launcher", "slurm", "sh", "-c", SHOW,
                       cwd=tmp_path, TESSERA_LIST="a,b c")
    assert sorted(said.out.splitlines()) == lines, said
    said = cluster.run("tessera", "launch", "--launcher", "slurm", "--num_nodes", "2", "--nproc", "1", "sh", "-c", SHOW,
                       cwd=tmp_path, TESSERA_LIST="a,b c")
    assert sorted(said.out.splitlines()) == ["node1 0 2 0 1 node1 a,b c", "node2 1 2 0 1 node1 a,b c"], said


def test_a_hostfile_chooses_among_the_nodes_as_deepspeed_does(cluster, tmp_path):
    """Its srun says how many tasks there are in all, and leaves it to Slurm how many a node has."""
    (tmp_path / "hosts").write_text("".join(f"node{number} slots=2\n" for number in (1, 2, 3)))
    show = 'echo "$(hostname) $SLURM_PROCID $TESSERA_LIST"'
    said = cluster.run("tessera", "launch", "-H", "hosts", "--include", "node2@node3", "--launcher", "slurm", "--launcher_args",
                       "--ntasks-per-node=2", "sh", "-c", show, cwd=tmp_path, TESSERA_LIST="a,b c")
    assert sorted(said.out.splitlines()) == [f"node{node} {rank} a,b c" for node, rank in [(2, 0), (2, 1), (3, 2), (3, 3)]], said


def test_train_takes_the_launcher_and_the_exit_code_is_the_ranks(cluster, run_file):
    cluster.run("tessera", "train", "run.yaml", "--launcher", "slurm", "--num_nodes", "3", "--nproc", "1", cwd=run_file.parent)
    assert_as_here(run_file, 3)
    said = cluster.run("tessera", "launch", "--launcher", "slurm", "--num_nodes", "2", "sh", "-c", "exit $((RANK * 7))", code=7,
                       cwd=run_file.parent)
    assert "Exited with exit code 7" in said.err


def test_what_srun_was_forgotten_for_or_given_twice_is_told(cluster, run_file):
    said = cluster.run("salloc", "--nodes=1", "--ntasks=2", "tessera", "train", "run.yaml", "--set", "training.max_steps=1",
                       cwd=run_file.parent)
    assert "trains alone, in a job of Slurm's with 2 tasks: start it with srun" in said.err, said
    said = cluster.run("srun", "--ntasks=2", "tessera", "train", "run.yaml", "--nproc", "2", code=2, cwd=run_file.parent)
    assert re.search(r"task [01] of the 2 that srun has started, and each is asked to start ranks of its own", said.err), said


def script_of(run_file, *options):
    """As a file, and known to bash for a script."""
    said = tessera("train", "run.yaml", *options, "--print-sbatch", cwd=run_file.parent)
    assert said.code == 0, said
    script = run_file.parent / "job.sh"
    script.write_text(said.out)
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""
    return script


def test_a_job_that_is_told_to_end_saves_is_queued_again_and_ends_as_one_that_was_not(cluster, run_file):
    script_of(run_file, "--num_nodes", "3", "--nproc", "1", "--set", "training.max_steps=60")
    job = cluster.submit("job.sh", cwd=run_file.parent)
    log = run_file.parent / f"run-{job}.out"
    try:
        wait_until(lambda: steps_done(run_file.parent / "out") >= 3, "three steps")
        cluster.run("scancel", "--signal=USR1", "--batch", job)  # as Slurm does by itself before the end (--signal=B:USR1@120)
        state = cluster.wait_for(job)
        assert (state["JobState"], state["Restarts"], state["ExitCode"]) == ("COMPLETED", "1", "0:0"), log.read_text()
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text() if log.exists() else 'no output'}\n{cluster.said()}") from None
    said = log.read_text()
    stopped = int(re.search(r"stopped by a signal after step (\d+); the state is saved, and exit code 75", said).group(1))
    assert 3 <= stopped < 60 and "Exited with exit code 75" in said and "done after 60 steps" in said
    assert_as_here(run_file, 3, **{"training.max_steps": 60})
    assert not list(run_file.parent.glob(".tessera-secret-*"))  # and with one the ranks knew each other
    assert "this run has no secret" not in said


def test_the_script_is_an_arrays_too(cluster, run_file):
    """Two jobs on one node at a time: outputs and ports of their own."""
    script_of(run_file, "--nproc", "2")
    job = cluster.submit("--array=3-4", "--nodelist=node2", "--export=ALL,TESSERA_TIMEOUT=60", "job.sh", cwd=run_file.parent)
    for number in (3, 4):
        state = cluster.wait_for(f"{job}_{number}")
        log = (run_file.parent / f"run-{state['JobId']}.out").read_text()
        assert state["JobState"] == "COMPLETED" and state["NodeList"] == "node2", log
        assert f"out-{number}" in log
    assert largest_difference(metrics(run_file.parent / "out-3"), trained_here(run_file, 2)) < 1e-5
    assert largest_difference(metrics(run_file.parent / "out-4"), metrics(run_file.parent / "out-3")) == 0


def test_a_script_for_any_program_hands_its_code_on(cluster, tmp_path):
    said = tessera("launch", "--nproc", "2", "--launcher_args", "--partition=gpu --nodelist=node3", "--print-sbatch",
                   "sh", "-c", SHOW + "; exit $RANK", cwd=tmp_path)
    (tmp_path / "job.sh").write_text(said.out)
    state = cluster.wait_for(cluster.submit("job.sh", cwd=tmp_path))
    log = (tmp_path / f"sh-{state['JobId']}.out").read_text()
    assert state["ExitCode"] == "1:0" and state["NodeList"] == "node3", log
    assert "node3 0 2 0 2 node3" in log and "node3 1 2 1 2 node3" in log
