"""`tessera train` on two hosts, which network namespaces stand for: each has an interface of its own, and no rank can reach the
other host's shared memory. Needs root, and a kernel with network namespaces."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tessera_runs import TESSERA, environment, finish, free_port, largest_difference, metrics, write_run_file

RANKS, RANKS_A_HOST = 4, 2
ADDRESSES = ["10.213.7.1", "10.213.7.2"]
INTERFACE = "tessera0"
FIRST_HOST = "tessera-first-host"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


class Hosts:
    def __init__(self):
        self.names = [f"tessera-{os.getpid()}-{host}" for host in "ab"]

    def make(self, stack):
        for name in self.names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
        # What each finds under FIRST_HOST: Debian writes a host's own name into its /etc/hosts with an address of the loopback.
        for name, address in zip(self.names, ["127.0.1.1", ADDRESSES[0]]):
            own = Path("/etc/netns", name)
            own.mkdir(parents=True)
            stack.callback(shutil.rmtree, own)
            (own / "hosts").write_text(f"127.0.0.1 localhost\n{address} {FIRST_HOST}\n")
        ip("link", "add", INTERFACE, "netns", self.names[0], "type", "veth", "peer", "name", INTERFACE, "netns", self.names[1])
        for name, address in zip(self.names, ADDRESSES):
            ip("-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            ip("-n", name, "link", "set", INTERFACE, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def sent_bytes(self, host):
        counter = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
        return int(subprocess.run(["ip", "netns", "exec", self.names[host], "cat", counter], check=True, capture_output=True,
                                  timeout=20).stdout)

    def start(self, run_file, **extra):
        """A process a rank."""
        port = free_port()
        ranks = []
        for rank in range(RANKS):
            env = environment(**{"RANK": rank, "LOCAL_RANK": rank % RANKS_A_HOST, "WORLD_SIZE": RANKS,
                                 "LOCAL_WORLD_SIZE": RANKS_A_HOST, "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": port,
                                 "OMP_NUM_THREADS": 1, **extra})
            command = ["ip", "netns", "exec", self.names[rank // RANKS_A_HOST], str(TESSERA), "train", str(run_file)]
            ranks.append(subprocess.Popen(command, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, start_new_session=True))
        return ranks


@pytest.fixture(scope="module")
def hosts():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    with ExitStack() as stack:
        made = Hosts()
        try:
            made.make(stack)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system gives no network namespaces: {error.stderr.strip()}")
        yield made


def run_file_for(folder, run, stage, max_steps, **zero):
    return write_run_file(folder, {**run, "output": str(folder / "out"), "training": {"max_steps": max_steps, "seed": 42},
                                   "deepspeed": {**run["deepspeed"], "zero_optimization": {"stage": stage, **zero}}})


def train(hosts, folder, run, stage, zero=None, **extra):
    """Its metrics, and the bytes that host a sent to host b."""
    run_file = run_file_for(folder, run, stage, max_steps=6, **(zero or {}))
    before = hosts.sent_bytes(0)
    for result in [finish(rank) for rank in hosts.start(run_file, **extra)]:
        assert result.code == 0, result
    return metrics(folder / "out"), hosts.sent_bytes(0) - before


@pytest.mark.sample("0", "3")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_levels_train_as_one_does_and_send_half_the_bytes(hosts, tiny_run, tmp_path, stage):
    """With one level each of a host's two ranks sends to both ranks of the other, with two to one. The losses differ as sums in
    another order do."""
    flat, flat_bytes = train(hosts, tmp_path / "flat", tiny_run, stage, TESSERA_BACKEND="gloo",
                             GLOO_SOCKET_IFNAME=INTERFACE)
    levels, bytes_of_levels = train(hosts, tmp_path / "levels", tiny_run, stage)
    assert len(levels) == 6 and largest_difference(levels, flat) < 1e-5
    assert 0.4 * flat_bytes < bytes_of_levels < 0.6 * flat_bytes


def test_zero_plus_plus_spares_the_network(hosts, tiny_run, tmp_path):
    """Secondary shards have the bits of stage 3. Of three times the parameters of a host, two gathers and a reduction, they leave two
    to cross the network; in 8 bits, and gradients in 4, these are 1/4 and 1/8. DeepSpeed's issue #5030: there they hang."""
    every = {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}
    plain, plain_bytes = train(hosts, tmp_path / "plain", tiny_run, 3, every)
    hpz, hpz_bytes = train(hosts, tmp_path / "hpz", tiny_run, 3, {**every, "zero_hpz_partition_size": 2})
    few, few_bytes = train(hosts, tmp_path / "few", tiny_run, 3, {**every, "zero_hpz_partition_size": 2, "zero_quantized_weights": True,
                                                                  "zero_quantized_gradients": True})
    assert len(hpz) == 6 and [row["loss"] for row in hpz] == [row["loss"] for row in plain]
    assert 1e-7 < largest_difference(few, plain) < 0.05
    assert hpz_bytes < 0.8 * plain_bytes and few_bytes < 0.25 * plain_bytes


def test_the_name_of_the_first_host_may_be_its_loopback_there(hosts, tiny_run, tmp_path):
    flat, _ = train(hosts, tmp_path / "flat", tiny_run, stage=2, TESSERA_BACKEND="gloo", MASTER_ADDR=FIRST_HOST)
    levels, _ = train(hosts, tmp_path / "levels", tiny_run, stage=2, MASTER_ADDR=FIRST_HOST)
    assert len(levels) == 6 and largest_difference(levels, flat) < 1e-5


def start_until_it_trains(hosts, folder, run, **extra):
    ranks = hosts.start(run_file_for(folder, run, stage=3, max_steps=1_000_000), **extra)
    deadline = time.monotonic() + 60
    written = folder / "out" / "metrics.jsonl"
    while not (written.exists() and written.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline and all(rank.poll() is None for rank in ranks), [finish(rank, 1) for rank in ranks]
        time.sleep(0.1)
    return ranks


@pytest.mark.parametrize("backend", ["gloo", "shm+gloo"])
@pytest.mark.parametrize("frozen", [0, 3])
def test_a_rank_that_is_stopped_ends_the_run_in_time(hosts, tiny_run, tmp_path, frozen, backend):
    """Its connections stay open and nobody answers. gloo's own time-outs would add up."""
    ranks = start_until_it_trains(hosts, tmp_path, tiny_run, TESSERA_TIMEOUT=4, TESSERA_BACKEND=backend)
    os.killpg(ranks[frozen].pid, signal.SIGSTOP)
    try:
        others = [finish(rank, timeout=40) for number, rank in enumerate(ranks) if number != frozen]
    finally:
        os.killpg(ranks[frozen].pid, signal.SIGKILL)
        finish(ranks[frozen])
    for result in others:
        assert result.code not in (0, None), result
    assert any(f"rank {frozen} did not join" in result.err for result in others), others


def test_the_death_of_a_rank_ends_the_run_on_both_hosts(hosts, tiny_run, tmp_path):
    ranks = start_until_it_trains(hosts, tmp_path, tiny_run)
    os.killpg(ranks[3].pid, signal.SIGKILL)
    results = [finish(rank, timeout=60) for rank in ranks]
    for result in results[:3]:
        assert result.code not in (0, None) and "went away" in result.err, result
    assert "rank 3 went away" in results[2].err, results[2]


def start_two_ranks(hosts, folder, run, port):
    """One on each host, with three seconds for each wait."""
    run_file = run_file_for(folder, run, stage=0, max_steps=1)
    ranks = []
    for rank, name in enumerate(hosts.names):
        env = environment(RANK=rank, LOCAL_RANK=0, WORLD_SIZE=2, LOCAL_WORLD_SIZE=1, MASTER_ADDR=ADDRESSES[0],
                          MASTER_PORT=port[rank], TESSERA_TIMEOUT=3)
        ranks.append(subprocess.Popen(["ip", "netns", "exec", name, str(TESSERA), "train", str(run_file)], env=env, text=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True))
    return [finish(rank, timeout=60) for rank in ranks]


def test_a_firewall_is_told_from_a_wrong_port(hosts, tiny_run, tmp_path):
    """Host a has no way back to host b, so that what b asks for stays without an answer, as behind a firewall that drops."""
    first, second = start_two_ranks(hosts, tmp_path / "port", tiny_run, port=[29500, 29501])
    assert first.code == 1 and "rank 1 did not join the run within 3 s; rank 0 did" in first.err, first
    assert second.code == 1 and f"no rank 0 listens on {ADDRESSES[0]}:29501" in second.err, second
    assert "is rank 0 started, and does it have the same MASTER_ADDR and MASTER_PORT?" in second.err, second
    ip("-n", hosts.names[0], "route", "add", "blackhole", f"{ADDRESSES[1]}/32")
    try:
        first, second = start_two_ranks(hosts, tmp_path / "wall", tiny_run, port=[29500, 29500])
    finally:
        ip("-n", hosts.names[0], "route", "delete", "blackhole", f"{ADDRESSES[1]}/32")
    assert first.code == 1 and "rank 1 did not join the run within 3 s; rank 0 did" in first.err, first
    assert second.code == 1 and f"nothing comes back from {ADDRESSES[0]}:29500: a firewall or a route drops" in second.err, second
