"""A host that vanishes, or what runs there, ends the run: in time, by name, on every host, and nothing is left. The same by the hundred,
at moments that a seed draws, is in tests/storm/hosts.py."""

import re
import time

import pytest
from cluster import send
from host_runs import start_train, wait_for_steps, write_tiny_run
from tessera_runs import finish, largest_difference, metrics, train, wait_until

SILENCE = 4  # seconds, TESSERA_TIMEOUT here
END = 5      # seconds more, in which what can be reached has ended
SLACK = 10   # seconds more that a busy machine may take


@pytest.fixture(scope="module")
def run_file(tiny_bert, texts, tmp_path_factory):
    return write_tiny_run(tmp_path_factory.mktemp("lost"), tiny_bert, texts, max_steps=1_000_000)


def running(hosts, run_file, output, *options, **how):
    process = start_train(hosts, run_file, output, *options, env={"TESSERA_TIMEOUT": SILENCE}, **how)
    wait_for_steps(process, output)
    return process


def ended(process, within):
    result = finish(process, within + SLACK)
    assert result.code not in (0, None), str(result)
    return result


@pytest.mark.parametrize("how", ["unplug", "link_down", "freeze"])
def test_a_host_that_vanishes_is_named_and_everything_ends(hosts, run_file, tmp_path, how):
    process = running(hosts, run_file, tmp_path / "out")
    getattr(hosts["node3"], how)()
    result = ended(process, SILENCE + END)
    assert re.search(r"error: host node3 has not been heard of for \d+ s", result.err), str(result)
    if how == "freeze":
        hosts["node3"].thaw()
    # Its own launcher hears nothing either; its ssh daemon waits for a client that it cannot reach, which is not ours to end.
    end = time.monotonic() + SILENCE + END + SLACK
    while left := {name: [each for each in found if not each.startswith("sshd:")] for name, found in hosts.left().items()}:
        if not any(left.values()):
            break
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.05)


def test_a_host_whose_kernel_ends_every_connection_is_named_at_once(hosts, run_file, tmp_path):
    process = running(hosts, run_file, tmp_path / "out")
    hosts["node3"].die()
    result = ended(process, SILENCE + END)
    assert "error: node3 lost its connection" in result.err or "error: host node3 has not been heard of" in result.err, str(result)
    hosts.require_nothing_left(END + SLACK)


def test_the_host_of_the_launcher_is_told_to_look_at_itself_where_no_other_is_heard(hosts, run_file, tmp_path):
    process = running(hosts, run_file, tmp_path / "out")
    hosts["node1"].unplug()
    result = ended(process, SILENCE + END)
    assert re.search(r"error: host node[23] has not been heard of", result.err), str(result)
    assert "fix:   no other host is heard of either: look at the network of this one first" in result.err, str(result)


def victim_among(host, pattern):
    found = [pid for pid, command in host.processes().items() if re.search(pattern, command)]
    assert found, host.processes()
    return found[0]


@pytest.mark.parametrize("victim, says", [
    (r"^sshd: root@notty", "error: node3 lost its connection"),
    (r"tessera launch --node-part", "error: node3 lost its connection"),
    ("rank", r"error: rank 2 on node3 was killed by SIGKILL")])
def test_what_is_killed_on_a_host_is_named(hosts, run_file, tmp_path, victim, says):
    process = running(hosts, run_file, tmp_path / "out")
    host = hosts["node3"]
    send(host.ranks()[2] if victim == "rank" else victim_among(host, victim), 9)
    result = ended(process, END)
    assert re.search(says, result.err), str(result)
    hosts.require_nothing_left(END + SLACK)


def test_the_hosts_end_their_ranks_where_the_launcher_is_killed(hosts, run_file, tmp_path):
    process = running(hosts, run_file, tmp_path / "out", names=["node2", "node3"])
    send(victim_among(hosts["node1"], r"tessera train .*--hostfile"), 9)
    ended(process, END)
    hosts.require_nothing_left(END + SLACK)


def test_a_run_goes_on_over_the_hosts_that_are_left_on_the_same_batches(hosts, tiny_bert, texts, tmp_path):
    """Two ranks add up the samples of a step in another order than three, which in fp32 costs up to 2^-24 an addition."""
    run_file = write_tiny_run(tmp_path / "run", tiny_bert, texts, max_steps=30, save_steps=1)
    train(run_file, 3, {"output": tmp_path / "alone", "training.save_steps": 0}, env={"OMP_NUM_THREADS": 1})
    output = tmp_path / "out"
    process = running(hosts, run_file, output, "--max-restarts", 1, "--min-nproc", 2)
    hosts["node2"].unplug()
    result = finish(process, 180)
    assert result.code == 0, str(result)
    assert "host node2 has not been heard of" in result.err and "on 2 ranks instead of 3" in result.err, str(result)
    got, whole = metrics(output), metrics(tmp_path / "alone")
    assert [(row["step"], row["samples"], row["tokens"], row["lr"]) for row in got] == \
        [(row["step"], row["samples"], row["tokens"], row["lr"]) for row in whole]
    resumed = int(re.search(r"resumed .* after step (\d+)", result.err)[1])
    assert got[resumed - 1]["loss"] == whole[resumed - 1]["loss"]
    assert largest_difference(got[resumed:resumed + 10], whole[resumed:resumed + 10]) < 1e-6
    # An sshd that cannot reach its client waits on.
    wait_until(lambda: not [each for left in hosts.left().values() for each in left if not each.startswith("sshd:")],
               "the end of all that the run had started", SLACK)
