"""tessera check by the ranks of any launcher, and what it says of ranks that do not fit together. A rank with another TESSERA_HOST is
on another host as far as ranks can tell; tests/hosts/test_check_on_hosts.py has hosts with networks and files of their own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tessera_runs import TESSERA, environment, finish, free_port, tessera

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1, "OMPI_MCA_rmaps_base_oversubscribe": 1}
RIGHT = dict.fromkeys(["all-reduce", "all-gather", "reduce-scatter", "broadcast"], True)


def start_rank(rank, *paths, size=2, port, program=TESSERA, folder=None, **extra):
    """As a pod of Kubernetes or a script by hand would: plain variables, a host for each rank."""
    env = environment(RANK=rank, WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TESSERA_HOST=f"node{rank + 1}", **extra)
    return subprocess.Popen([program, "check", "--json", *paths], env=env, cwd=folder, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def check_of_two(*paths, code, others=None, **extra):
    """Rank 0's result; `others`: what is different for rank 1."""
    port = free_port()
    ranks = [start_rank(0, *paths, port=port, **extra), start_rank(1, *paths, port=port, **extra, **(others or {}))]
    results = [finish(rank) for rank in ranks]
    assert results[0].code == code, f"{results[0]}\n{results[1]}"
    return results


def whats(result, step):
    return [each["what"] for each in json.loads(result.out)["findings"] if each["step"] == step]


def test_ranks_with_plain_variables_are_two_hosts():
    result, other = check_of_two(code=0)
    found = json.loads(result.out)
    assert [host["host"] for host in found["hosts"]] == ["node1", "node2"] and found["collectives"] == RIGHT
    assert whats(result, "clocks") == [] and other.out == "" and other.code == 0, str(other)


def test_a_clock_that_is_ahead_is_a_warning():
    result, _ = check_of_two(code=0, TESSERA_FAULT="1:clock")  # by 5 s
    warning, = whats(result, "clocks")
    assert warning.startswith("the clock of node2 is 5.0") and "ahead of that of node1" in warning, warning


def test_a_path_that_means_another_file_elsewhere_is_a_problem(tmp_path):
    for host, text in (("node1", "12345"), ("node2", "123456")):
        (tmp_path / host).mkdir()
        (tmp_path / host / "data.txt").write_text(text)
    port = free_port()
    ranks = [start_rank(rank, "data.txt", port=port, folder=tmp_path / f"node{rank + 1}") for rank in (0, 1)]
    results = [finish(rank) for rank in ranks]
    assert results[0].code == 1, str(results[0])
    assert whats(results[0], "files") == ["rank 1 (node2) finds under 'data.txt' 6 bytes, and rank 0 (node1) 5 bytes"]


def test_a_rank_of_another_version_is_named(tmp_path):
    version = tessera("--version").out.strip().encode()
    other = version[:-1] + (b"8" if version.endswith(b"9") else b"9")
    program = TESSERA.read_bytes()
    assert version + b"\0" in program
    altered = tmp_path / "tessera"
    altered.write_bytes(program.replace(version + b"\0", other + b"\0"))
    altered.chmod(0o755)
    results = check_of_two(code=2, others={"program": altered})
    for result in results:
        assert result.code == 2 and result.out == "", str(result)
        assert f"rank 0 runs with {version.decode()} of Tessera, and rank 1 with {other.decode()} of Tessera" in result.err, str(result)


def test_a_rank_that_does_not_come_is_named_within_the_time():
    rank = start_rank(0, port=free_port(), TESSERA_TIMEOUT=2)
    result = finish(rank)
    assert result.code == 1 and "rank 1 did not join the run within 2 s" in result.err, str(result)


@pytest.mark.parametrize("mpirun", ["mpirun.openmpi", "mpirun.mpich"])
def test_ranks_of_mpirun(mpirun):
    if shutil.which(mpirun) is None:
        pytest.skip(f"there is no {mpirun}")
    result = subprocess.run([mpirun, "-n", "2", TESSERA, "check", "--json"], env=environment(**AS_ROOT), text=True, capture_output=True,
                            timeout=120, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert found["ranks"] == 2 and found["collectives"] == RIGHT


def test_ranks_of_torchrun():
    torchrun = Path(sys.executable).with_name("torchrun")
    result = subprocess.run([torchrun, "--no-python", "--nproc-per-node=2", f"--master-port={free_port()}", TESSERA, "check", "--json"],
                            env=environment(OMP_NUM_THREADS=1), text=True, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert found["ranks"] == 2 and found["collectives"] == RIGHT


def test_the_ranks_of_accelerates_configuration(tmp_path):
    (tmp_path / "accelerate.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_machines: 1\nnum_processes: 3\n")
    result = tessera("launch", "--config", tmp_path / "accelerate.yaml", "--check", "--json")
    assert result.code == 0 and json.loads(result.out)["ranks"] == 3, str(result)
