"""The hosts that namespaces stand for are hosts: what other tests here take for granted."""

import time

import pytest
from cluster import NETWORK
from tessera_runs import alive, finish


def test_each_has_a_name_an_address_processes_and_memory_of_its_own(hosts):
    hosts["node2"].do("touch", "/dev/shm/of-node2")
    said = hosts["node1"].run("ssh", "node2", "hostname; hostname -I; echo $TESSERA_HOST; ls /dev/shm; cat /proc/1/comm").out.split()
    assert said == ["node2", f"{NETWORK}.2", "node2", "of-node2", "sleep"]
    assert hosts["node1"].shared_memory() == [] and hosts["node2"].shared_memory() == ["of-node2"]
    sleeping = hosts["node3"].start("sleep", "1000")
    left, end = {"node2": ["of-node2"], "node3": ["sleep 1000"]}, time.monotonic() + 20
    while hosts.left() != left and time.monotonic() < end:  # it enters the host before it becomes that program
        time.sleep(0.05)
    assert hosts.left() == left
    hosts["node3"].end_everything()
    finish(sleeping, 10)
    hosts["node2"].do("rm", "/dev/shm/of-node2")
    hosts.require_nothing_left(within=5)


def reaches(hosts, name):
    return hosts["node1"].run("ssh", "-o", "ConnectTimeout=1", name, "true").code == 0


@pytest.mark.parametrize("part, join", [("unplug", "plug_in"), ("link_down", "link_up"), ("freeze", "thaw")])
def test_one_that_is_cut_off_is_reached_again_later(hosts, part, join):
    assert reaches(hosts, "node2")
    getattr(hosts["node2"], part)()
    assert not reaches(hosts, "node2") and reaches(hosts, "node3")
    getattr(hosts["node2"], join)()
    assert reaches(hosts, "node2")


def test_one_that_dies_takes_all_of_its_own_with_it(hosts):
    sleeping = hosts["node2"].start("sleep", "1000")
    while not (pids := list(hosts["node2"].processes())):
        time.sleep(0.01)
    hosts["node2"].die()
    finish(sleeping, 10)
    assert not alive(pids) and not reaches(hosts, "node2") and reaches(hosts, "node3")


def seconds_to_send(hosts, count):
    began = time.monotonic()
    result = hosts["node1"].run("sh", "-c", f"head -c {count} /dev/zero | ssh node2 wc -c")
    assert result.out.split() == [str(count)], str(result)
    return time.monotonic() - began


def test_a_link_can_be_slow_late_and_lossy(hosts):
    assert seconds_to_send(hosts, 10_000_000) < 4
    hosts["node2"].limit(rate="10mbit")
    assert seconds_to_send(hosts, 2_500_000) > 2 * 0.8
    hosts["node2"].limit(delay="150ms")
    assert seconds_to_send(hosts, 1) > 1  # a handshake takes several turns
    hosts["node2"].limit(delay="1ms", loss="2%")
    seconds_to_send(hosts, 1_000_000)
    hosts["node2"].limit()
    assert seconds_to_send(hosts, 10_000_000) < 4
