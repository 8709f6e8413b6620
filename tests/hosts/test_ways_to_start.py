"""Every way of starting ranks on several hosts trains to the losses of as many ranks on this machine alone, over real addresses."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from cluster import NETWORK, Cluster
from host_runs import THREADS, settings_words, start_train, threads_on_every_host, write_tiny_run
from tessera_runs import REPOSITORY, TESSERA, finish, largest_difference, losses_and_norms, metrics, train

STEPS = 5
FIRST_ADDRESS = f"{NETWORK}.1"
TORCHRUN = Path(sys.executable).with_name("torchrun")


@pytest.fixture(scope="module")
def cluster(hosts_can_be_made, tmp_path_factory):
    """node1 and node2, which no test here disturbs."""
    with Cluster(tmp_path_factory.mktemp("two-hosts"), names=["node1", "node2"]) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def run_file(tiny_bert, texts, tmp_path_factory):
    return write_tiny_run(tmp_path_factory.mktemp("run"), tiny_bert, texts, max_steps=STEPS)


@pytest.fixture(scope="module")
def alone(run_file, tmp_path_factory):
    """{number of ranks: output} of this machine alone."""
    folder = tmp_path_factory.mktemp("alone")
    for ranks in (2, 4):
        train(run_file, ranks, {"output": folder / str(ranks)}, env=THREADS)
    return {ranks: folder / str(ranks) for ranks in (2, 4)}


def require_all_well(processes):
    for result in [finish(process) for process in processes]:
        assert result.code == 0, str(result)


def by_launcher(*options, **env):
    def start(cluster, run_file, output):
        return [start_train(cluster, run_file, output, *options, env=env)]
    return start


def on_every_host(words):
    """words(node rank) is the command there."""
    def start(cluster, run_file, output):
        return [host.start(*words(number), "train", run_file, *settings_words({"output": output}), *options_for(number, words),
                           env=threads_on_every_host(cluster.folder)) for number, host in enumerate(cluster)]
    return start


def itself(_):
    return [TESSERA]


def options_for(number, words):
    own = ["--no_ssh", "--num_nodes", 2, "--nproc", 1, "--node_rank", number, "--master_addr", FIRST_ADDRESS]
    return own if words is itself else []


def torchrun(number):
    return [TORCHRUN, "--nnodes", 2, "--nproc_per_node", 1, "--node_rank", number, "--master_addr", FIRST_ADDRESS, "--master_port", 29511,
            "--no-python", TESSERA]


def by_mpirun(program, *options):
    def start(cluster, run_file, output):
        return [cluster["node1"].start(program, *options, TESSERA, "train", run_file, *settings_words({"output": output}),
                                       env={**THREADS, "OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1})]
    return start


def mpich_on_path(cluster, run_file, output):
    """`mpirun` is that of one MPI; here it is MPICH's."""
    folder = cluster.folder / "mpich"
    folder.mkdir(exist_ok=True)
    (folder / "mpirun").write_text(f'#!/bin/sh\nexec {shutil.which("mpirun.mpich")} "$@"\n')
    (folder / "mpirun").chmod(0o755)
    return by_launcher("--launcher", "mpich", PATH=f"{folder}:{os.environ['PATH']}")(cluster, run_file, output)


WAYS = {
    "ssh": ("ssh", by_launcher()),
    "pdsh": ("pdsh", by_launcher("--launcher", "pdsh")),
    "a command on every host": ("ssh", on_every_host(itself)),
    "torchrun": (str(TORCHRUN), on_every_host(torchrun)),
    "--launcher openmpi": ("mpirun.openmpi", by_launcher("--launcher", "openmpi", OMPI_ALLOW_RUN_AS_ROOT=1,
                                                         OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)),
    "--launcher mpich": ("mpirun.mpich", mpich_on_path),
    "Open MPI": ("mpirun.openmpi", by_mpirun("mpirun.openmpi", "-n", 2, "--host", "node1,node2", "-x", "OMP_NUM_THREADS")),
    "MPICH": ("mpirun.mpich", by_mpirun("mpirun.mpich", "-n", 2, "-ppn", 1, "-hosts", "node1,node2")),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_start_trains_as_two_ranks_of_one_host(cluster, run_file, alone, tmp_path, way):
    program, start = WAYS[way]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    before = cluster["node2"].sent_bytes()
    require_all_well(start(cluster, run_file, tmp_path / "out"))
    assert losses_and_norms(tmp_path / "out") == losses_and_norms(alone[2])
    assert cluster["node2"].sent_bytes() - before > 100_000  # they did meet over the network
    cluster.require_nothing_left(within=10)


def test_two_ranks_on_each_of_two_hosts_train_as_four_of_one(cluster, run_file, alone, tmp_path):
    """Sums go in two levels then, in another order."""
    require_all_well([start_train(cluster, run_file, tmp_path / "out", slots=2)])
    assert largest_difference(metrics(tmp_path / "out"), metrics(alone[4])) < 1e-5
    cluster.require_nothing_left(within=10)


@pytest.mark.parametrize("link", [{"rate": "100mbit"}, {"delay": "3ms"}, {"delay": "1ms", "loss": "1%", "rate": "200mbit"}],
                         ids=["slow", "late", "late and lossy"])
def test_a_link_that_is_slow_late_or_lossy_changes_no_loss(cluster, run_file, alone, tmp_path, link):
    cluster["node2"].limit(**link)
    try:
        require_all_well([start_train(cluster, run_file, tmp_path / "out")])
    finally:
        cluster["node2"].limit()
    assert losses_and_norms(tmp_path / "out") == losses_and_norms(alone[2])


def test_groups_of_a_mesh_reach_over_hosts(cluster, tmp_path):
    """The Python door, started by torchrun with two ranks on each host; what they find is judged as on one (tests/python)."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "python"))
    import ranks
    import test_mesh
    program = REPOSITORY / "tests" / "python" / "mesh_runs.py"
    env = {"TMPDIR": tmp_path} | {name: value for name, value in ranks.environment().items() if name in ("PYTHONPATH", "OMP_NUM_THREADS", "HF_HUB_OFFLINE")}
    processes = [host.start(TORCHRUN, "--nnodes", 2, "--nproc_per_node", 2, "--node_rank", number, "--master_addr", FIRST_ADDRESS,
                            "--master_port", 29512, program, env=env) for number, host in enumerate(cluster)]
    results = [finish(process, 300) for process in processes]
    assert all(result.code == 0 for result in results), "\n".join(map(str, results))
    runs = json.loads(results[0].out.strip().splitlines()[-1])
    test_mesh.test_replicas_of_sharded_state_train_as_plain_pytorch(runs)
    test_mesh.test_the_programs_own_tensor_parallel_layers_train_as_the_whole_model(runs)
    cluster.require_nothing_left(within=10)
