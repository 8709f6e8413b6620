"""Connections to a run's store that are none of its ranks': nobody joins without the run's secret, and garbage, silent connections
and floods of them cost a log line, while ranks start and while they train."""

import contextlib
import os
import re
import socket
import threading
import time

import pytest
from tessera_runs import finish, free_port, losses_and_norms, start, tessera, train, write_run_file

STEPS = 150
SECRET = "a secret that these tests share"
GARBAGE = [b"", b"tess", b"\0" * 100, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10, os.urandom(5000)]


@pytest.fixture
def run_file(tiny_run, tmp_path):
    tiny_run["training"] = {"max_steps": STEPS}
    return write_run_file(tmp_path, tiny_run)


def start_ranks(run_file, output, port, *environments):
    return [start("train", run_file, "--set", f"output={output}",
                  env={"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                       "OMP_NUM_THREADS": max(1, os.cpu_count() // 2), "TESSERA_TIMEOUT": 20, **environment})
            for rank, environment in enumerate(environments)]


@contextlib.contextmanager
def strangers(port):
    """One after the other says garbage and goes, and 300 stay and say nothing, or half of a hello; yields how many got through."""
    over, connected, kept = threading.Event(), [0], []

    def come():
        while not over.is_set():
            for garbage in GARBAGE:
                with contextlib.suppress(OSError):
                    stranger = socket.create_connection(("127.0.0.1", port), timeout=1)
                    connected[0] += 1
                    stranger.sendall(garbage)
                    if len(kept) < 300:
                        kept.append(stranger)
                    else:
                        stranger.close()
            time.sleep(0.002)

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield connected
    finally:
        over.set()
        thread.join()
        for stranger in kept:
            stranger.close()


def test_strangers_cost_a_log_line(run_file, tmp_path):
    port = free_port()
    with strangers(port) as connected:
        ranks = start_ranks(run_file, tmp_path / "visited", port, *[{"TESSERA_SECRET": SECRET}] * 2)
        results = [finish(rank) for rank in ranks]
    for result in results:
        assert result.code == 0, str(result)
    assert connected[0] > 300, connected
    refusals = re.findall(r"refused .* to the run's store", results[0].err)
    assert 1 <= len(refusals) <= 3, str(results[0])
    train(run_file, 2, {"output": tmp_path / "alone"})
    assert losses_and_norms(tmp_path / "visited") == losses_and_norms(tmp_path / "alone")


@pytest.mark.parametrize("of_rank_0, of_rank_1, what", [
    ({"TESSERA_SECRET": SECRET}, {}, "rank 1 has no secret, and rank 0 another one or none"),
    ({"TESSERA_SECRET": SECRET}, {"TESSERA_SECRET": SECRET + "!"}, "rank 1 has a secret of the run, and rank 0 another one or none"),
    ({}, {"TESSERA_SECRET": SECRET}, "rank 1 has a secret of the run, and rank 0 another one or none"),
])
def test_a_rank_without_the_runs_secret_is_refused(run_file, tmp_path, of_rank_0, of_rank_1, what):
    ranks = start_ranks(run_file, tmp_path / "out", free_port(), {**of_rank_0, "TESSERA_TIMEOUT": 3}, of_rank_1)
    first, second = [finish(rank) for rank in ranks]
    assert second.code == 2 and what in second.err, str(second)
    assert first.code == 1 and "rank 1 did not join the run within 3 s" in first.err, str(first)
    assert "refused a connection from 127.0.0.1 to the run's store" in first.err, str(first)


def write_secret(folder, text=SECRET, mode=0o600):
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_secret_may_come_from_a_file(run_file, tmp_path):
    secret = write_secret(tmp_path, SECRET + "\n")
    ranks = start_ranks(run_file, tmp_path / "out", free_port(), {"TESSERA_SECRET_FILE": secret}, {"TESSERA_SECRET": SECRET})
    for result in [finish(rank) for rank in ranks]:
        assert result.code == 0, str(result)


@pytest.mark.parametrize("mode, text, also, what", [
    (0o640, SECRET, {}, "in a file that others may read or write"),
    (0o602, SECRET, {}, "in a file that others may read or write"),
    (0o600, "short", {}, "has 5 characters"),
    (0o600, "", {}, "has 0 characters"),
    (0o600, "x" * 5000, {}, "secret"),
    (0o600, SECRET, {"TESSERA_SECRET": SECRET}, "TESSERA_SECRET and TESSERA_SECRET_FILE are both set"),
])
def test_a_secret_that_is_none(run_file, tmp_path, mode, text, also, what):
    result = tessera("train", run_file, "--nproc", 2, env={"TESSERA_SECRET_FILE": write_secret(tmp_path, text, mode), **also})
    assert result.code == 2 and what in result.err, str(result)


def test_the_launcher_makes_a_secret_for_each_run(tmp_path):
    secrets = [set(tessera("launch", "--nproc", 2, "printenv", "TESSERA_SECRET").out.split()[2::3]) for _ in range(2)]
    for secret in secrets:
        assert len(secret) == 1 and re.fullmatch("[0-9a-f]{64}", *secret)
    assert secrets[0] != secrets[1]
    result = tessera("launch", "--nproc", 2, "printenv", "TESSERA_SECRET", env={"TESSERA_SECRET": SECRET})
    assert result.out.count(SECRET) == 2, str(result)
