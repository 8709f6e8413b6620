"""tessera launch --check over several hosts: what differs between them is named, and a slow link."""

import json

import pytest
from cluster import Cluster
from host_runs import threads_on_every_host
from tessera_runs import TESSERA


@pytest.fixture(scope="module")
def cluster(hosts_can_be_made, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("three-hosts")) as hosts:
        yield hosts


def check(hosts, *paths, code):
    result = hosts["node1"].run(TESSERA, "launch", "--hostfile", hosts.hostfile(), "--check", "--json", *paths,
                                env=threads_on_every_host(hosts.folder))
    assert result.code == code, str(result)
    return json.loads(result.out)


def whats(found, step):
    return [each["what"] for each in found["findings"] if each["step"] == step]


def test_hosts_are_told_apart_and_their_files_compared(cluster, tmp_path):
    (tmp_path / "same").write_text("text")
    own = "/run/tmp/own"  # of each host
    for host in cluster:
        host.do("sh", "-c", f"echo text > {own}")
    found = check(cluster, tmp_path / "same", own, code=0)
    assert [host["host"] for host in found["hosts"]] == ["node1", "node2", "node3"]
    assert [clock["host"] for clock in found["clocks"]] == ["node2", "node3"]
    assert all(abs(clock["ahead_s"]) <= clock["uncertainty_s"] for clock in found["clocks"])  # one kernel has one clock
    assert [(link["from"], link["to"]) for link in found["links"]] == [(0, 1), (0, 2), (1, 2)]
    assert [file["same"] for file in found["files"]] == [True, True]
    cluster["node3"].do("sh", "-c", f"echo tess > {own}")
    problem, = whats(check(cluster, own, code=1), "files")
    assert problem.startswith(f"rank 2 (node3) finds under '{own}' 5 bytes with the sum ")
    assert "rank 0 (node1) 5 bytes with the sum " in problem


def test_a_full_shared_memory_is_told_before_a_bus_error(cluster):
    cluster["node2"].do("mount", "-o", "remount,size=40M", "/dev/shm")
    cluster["node2"].do("sh", "-c", "head -c 30000000 /dev/zero > /dev/shm/full")
    problem, = whats(check(cluster, code=1), "hosts")[:1]
    assert problem.startswith("/dev/shm of node2 is full"), problem
    cluster["node2"].do("rm", "/dev/shm/full")
    cluster["node2"].do("mount", "-o", "remount,size=50%", "/dev/shm")


def test_a_slow_link_is_named(cluster):
    cluster["node3"].limit(rate="30mbit")
    found = check(cluster, code=0)
    cluster["node3"].limit()
    slow = " ".join(whats(found, "links"))
    assert "node3" in slow and "rank 0 (node1) and rank 1 (node2)" not in slow, found["links"]
