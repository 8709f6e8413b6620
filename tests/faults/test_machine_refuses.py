"""What the machine refuses ends in one message and exit code 2, and costs nothing that was there before."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess

import pytest
from tessera_runs import (finish, losses_and_norms, start, steps_done, tessera, train, train_arguments, wait_until,
                          write_run_file)

MIB = 1 << 20


@pytest.fixture
def run_file(tiny_run, tmp_path):
    tiny_run["training"] = {"max_steps": 4, "save_steps": 2, "keep_last": 0}
    return write_run_file(tmp_path, tiny_run)


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of `size` bytes at `folder`; skips where it cannot be mounted."""
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
                                           capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def check_one_message(result, *fragments):
    assert result.code == 2, str(result)
    for fragment in (*fragments, "where:"):
        assert fragment in result.err, f"{fragment!r} is not in\n{result}"
    for raw in ("Traceback", "terminate called", "what():", "frame #", "Exception raised from"):
        assert raw not in result.err, str(result)


def checkpoints(output):
    return sorted(path.name for path in (output / "checkpoints").iterdir() if path.is_dir())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_disk_that_is_full_while_saving(run_file, tmp_path, ranks):
    """A checkpoint of the tiny model is 1 MB (83,709 parameters x 12 bytes): one fits on the disk, a second does not."""
    settings = {"deepspeed.zero_optimization.stage": 3}
    with small_disk(tmp_path / "disk", int(1.7 * MIB)) as disk:
        output = disk / "out"
        result = tessera(*train_arguments(run_file, ranks, {**settings, "output": output}))
        check_one_message(result, "No space left on device", "global_step4", str(output / "checkpoints"))
        assert checkpoints(output) == ["global_step2"]  # and nothing half-saved takes up room
        assert (output / "checkpoints" / "latest").read_text() == "global_step2\n"

        subprocess.run(["mount", "-o", f"remount,size={64 * MIB}", disk], check=True)
        train(run_file, ranks, {**settings, "output": output}, resume="auto")
        train(run_file, ranks, {**settings, "output": tmp_path / "whole"})
        assert losses_and_norms(output) == losses_and_norms(tmp_path / "whole")


def test_a_disk_that_is_full_of_activations(run_file, tmp_path):
    with small_disk(tmp_path / "disk", 8192) as disk:
        nvme = {"training.activation_checkpointing": "true", "deepspeed.activation_checkpointing.nvme_path": disk}
        result = tessera(*train_arguments(run_file, 1, {**nvme, "output": tmp_path / "out"}))
        check_one_message(result, "No space left on device", f"activation_checkpointing.nvme_path: {disk}")
        assert list(disk.iterdir()) == []


@pytest.mark.parametrize("folder, why", [("/nowhere", "No such file"), ("/proc", "errno"), ("/etc/hostname", "Not a directory")])
def test_a_folder_that_takes_no_activations(run_file, tmp_path, folder, why):
    nvme = {"training.activation_checkpointing": "true", "deepspeed.activation_checkpointing.nvme_path": folder}
    result = tessera(*train_arguments(run_file, 1, {**nvme, "output": tmp_path / "out"}))
    check_one_message(result, why, f"activation_checkpointing.nvme_path: {folder}")


def offload_to(folder):
    return {"deepspeed.zero_optimization": json.dumps(
        {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(folder)}})}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_disk_that_is_too_small_for_offloaded_state(run_file, tmp_path, ranks):
    """Refused before anything begins; with the check off, by the disk itself. 83,709 parameters with two moments take 1 MB."""
    with small_disk(tmp_path / "disk", MIB // 4) as disk:
        settings = {**offload_to(disk), "output": tmp_path / "out"}
        checked = tessera(*train_arguments(run_file, ranks, settings))
        check_one_message(checked, f"on the disk of {disk}, which has 262 kB left")
        tried = tessera(*train_arguments(run_file, ranks, {**settings, "training.memory_check": "false"}))
        check_one_message(tried, "there is no space", "No space left on device", str(disk))
        assert list(disk.iterdir()) == []


@pytest.mark.parametrize("folder, why", [("/nowhere", "No such file"), ("/proc", "errno"), ("/etc/hostname", "Not a directory")])
def test_a_folder_that_takes_no_offloaded_state(run_file, tmp_path, folder, why):
    settings = {**offload_to(folder), "output": tmp_path / "out", "training.memory_check": "false"}
    check_one_message(tessera(*train_arguments(run_file, 1, settings)), why, f"zero_optimization.offload_optimizer.nvme_path: {folder}")


def test_two_runs_may_offload_to_one_folder(run_file, tmp_path):
    swap = tmp_path / "swap"
    swap.mkdir()
    settings = offload_to(swap)
    train(run_file, 2, {**settings, "output": tmp_path / "alone"})
    both = [start(*train_arguments(run_file, 2, {**settings, "output": tmp_path / name})) for name in ("one", "other")]
    for process, name in zip(both, ("one", "other")):
        assert finish(process).code == 0
        assert losses_and_norms(tmp_path / name) == losses_and_norms(tmp_path / "alone")


def test_a_killed_run_leaves_nothing_of_its_offloaded_state(run_file, tmp_path):
    with small_disk(tmp_path / "disk", 16 * MIB) as disk:
        free = os.statvfs(disk).f_bfree
        settings = {**offload_to(disk), "output": tmp_path / "out", "training.max_steps": 5000}
        process = start(*train_arguments(run_file, 2, settings))
        wait_until(lambda: steps_done(tmp_path / "out") >= 2, "two steps")
        assert os.statvfs(disk).f_bfree < free
        os.killpg(process.pid, signal.SIGKILL)
        finish(process)
        wait_until(lambda: os.statvfs(disk).f_bfree == free, "the end of the ranks")
        assert list(disk.iterdir()) == []


def test_a_disk_that_is_full_while_exporting(run_file, tmp_path):
    train(run_file, 2, {"output": tmp_path / "out"})
    with small_disk(tmp_path / "disk", 200_000) as disk:
        result = tessera("checkpoint", "export", tmp_path / "out" / "checkpoints", "--to", disk / "exported")
        check_one_message(result, "No space left on device", "exported")
        assert list(disk.iterdir()) == []


def test_a_disk_that_is_full_for_metrics(run_file, tmp_path):
    with small_disk(tmp_path / "disk", 4096) as disk:
        (disk / "fill").write_bytes(b"x" * 4096)
        result = tessera(*train_arguments(run_file, 2, {"output": disk / "out"}))
        check_one_message(result, "No space left on device")


def test_a_limit_of_the_size_of_files(run_file, tmp_path):
    """As `ulimit -f` sets it; beyond it the kernel sends SIGXFSZ, which would end a process without a word."""
    result = tessera(*train_arguments(run_file, 1, {"output": tmp_path / "out"}),
                     preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)))
    check_one_message(result, "File too large", "global_step2")
    assert checkpoints(tmp_path / "out") == []


def test_an_output_that_may_not_be_written(run_file, tmp_path):
    """/proc refuses everybody, root included."""
    result = tessera(*train_arguments(run_file, 2, {"output": "/proc/tessera-out"}))
    check_one_message(result, "/proc/tessera-out")


def test_a_port_that_is_taken(run_file, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = tessera("train", run_file, "--set", f"output={tmp_path / 'out'}",
                         env={"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": port, "TESSERA_TIMEOUT": 20}, timeout=20)
        check_one_message(result, f"port {port} is already in use", "MASTER_PORT")
        result = tessera("launch", "--nproc", 2, "--master-port", port, "true", timeout=20)
        check_one_message(result, str(port), "in use")


def test_ranks_started_by_hand_train_as_those_of_the_launcher(run_file, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # the launcher gives each rank its share of the cores; the number of threads may decide the order of additions
    threads = max(1, os.cpu_count() // 2)
    ranks = [start("train", run_file, "--set", f"output={tmp_path / 'by-hand'}",
                   env={"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                        "OMP_NUM_THREADS": threads, "TESSERA_TIMEOUT": 30})
             for rank in range(2)]
    for result in [finish(rank) for rank in ranks]:
        assert result.code == 0, str(result)
    train(run_file, 2, {"output": tmp_path / "launched"})
    assert losses_and_norms(tmp_path / "by-hand") == losses_and_norms(tmp_path / "launched")


def test_a_rank_that_never_comes_is_named(run_file, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    result = tessera("train", run_file, "--set", f"output={tmp_path / 'out'}",
                     env={"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                          "TESSERA_TIMEOUT": 2}, timeout=30)
    assert result.code == 1, str(result)
    assert "rank 1 did not join the run within 2 s" in result.err, str(result)
    assert steps_done(tmp_path / "out") == 0


@pytest.mark.parametrize("variables, fragment", [
    ({"RANK": 0}, "WORLD_SIZE"),
    ({"RANK": 2, "WORLD_SIZE": 2}, "RANK=2"),
    ({"RANK": 0, "WORLD_SIZE": 2}, "MASTER_ADDR"),
    ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 70000}, "MASTER_PORT"),
    ({"RANK": "zero", "WORLD_SIZE": 2}, "RANK"),
    ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500, "TESSERA_TIMEOUT": 0}, "TESSERA_TIMEOUT"),
])
def test_an_environment_that_makes_no_sense(run_file, tmp_path, variables, fragment):
    result = tessera("train", run_file, "--set", f"output={tmp_path / 'out'}", env=variables, timeout=20)
    check_one_message(result, fragment)
