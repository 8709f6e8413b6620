"""tessera env: its facts are those of /proc, the standard library and torch; text and JSON say the same; ds_report says them too."""

import json
import os
import re
import resource
import subprocess
import sys

import pytest
import torch
from tessera_runs import REPOSITORY, TESSERA, environment, tessera


def facts(**settings):
    result = tessera("env", "--json", **settings)
    assert result.code == 0, str(result)
    return {(row["topic"], row["name"]): row for row in json.loads(result.out)}


def test_versions_and_instructions_are_those_of_torch_and_of_the_processor():
    found = facts()
    release = torch.__version__.partition("+")[0]
    assert found["versions", "LibTorch"]["value"] == found["versions", "LibTorch, built with"]["value"] == release
    assert found["versions", "tessera"]["value"] == tessera("--version").out.strip()
    assert found["versions", "kernel"]["value"] == f"{os.uname().sysname} {os.uname().release}"
    assert found["computing", "instructions of LibTorch"]["value"] == torch.backends.cpu.get_cpu_capability()
    flags = set(re.search(r"^flags\s*: (.*)$", open("/proc/cpuinfo").read(), re.MULTILINE)[1].split())
    best = next((name for name in ("avx512f", "avx2") if name in flags), "default")
    assert found["computing", "instructions of Tessera"]["value"] == best
    assert found["computing", "CUDA devices"]["number"] == torch.cuda.device_count()


def test_memory_processors_and_shared_memory_are_the_kernels():
    found = facts()
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB", open("/proc/meminfo").read(), re.MULTILINE))
    assert found["memory", "of this machine"]["number"] == int(meminfo["MemTotal"]) * 1024
    assert found["processors", "of this process"]["number"] == len(os.sched_getaffinity(0))
    shm = os.statvfs("/dev/shm")
    assert found["/dev/shm", "size"]["number"] == shm.f_blocks * shm.f_frsize
    assert found["host", "name"]["value"] == os.uname().nodename


def test_limits_are_those_of_the_process_and_low_ones_are_warned_of():
    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    found = facts(preexec=lower)
    files, locked = found["limits", "open files (ulimit -n)"], found["limits", "locked memory (ulimit -l)"]
    assert files["number"] == 300 and "ulimit -Hn" in files["warning"]
    assert locked["number"] == 65536 and "io_uring" in locked["warning"]


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_the_engine_for_files_is_that_which_a_measurement_uses(tmp_path, engine):
    measured = json.loads(tessera("bench", "io", "--path", tmp_path, "--size", "16M", "--json", env={"TESSERA_IO": engine}).out)["engine"]
    assert facts(env={"TESSERA_IO": engine})["files of offloads", "engine"]["value"].partition(":")[0] == measured


def test_a_launchers_variables_are_recognised_and_told_what_is_wrong_with_them():
    row = facts(env={"RANK": 1, "WORLD_SIZE": 3, "MASTER_ADDR": "node7", "MASTER_PORT": 29511})["ranks", "this process"]
    assert "rank 1 of 3" in row["value"] and "node7:29511" in row["value"] and row["warning"] is None
    assert "WORLD_SIZE is not" in facts(env={"RANK": 1})["ranks", "this process"]["warning"]


def test_a_setting_that_cannot_work_is_a_warning():
    assert "does not work here" in facts(env={"TESSERA_BACKEND": "mpi"})["communication backends", "TESSERA_BACKEND"]["warning"]
    assert "TESSERA_IO is 'tape'" in facts(env={"TESSERA_IO": "tape"})["files of offloads", "engine"]["warning"]


def test_text_says_what_json_says():
    still = {"TESSERA_BACKEND": "mpi"}  # one warning at least
    found, text = facts(env=still), tessera("env", env=still).out
    lines = set(text.splitlines())
    for (topic, name), row in found.items():
        assert topic in lines
        if name not in ("available", "free swap", "free"):  # move from one call to the next
            assert re.search(rf"^  {re.escape(name)} +{re.escape(row['value'])}$", text, re.MULTILINE), name
        if row["warning"]:
            assert f"  {topic}, {name}: {row['warning']}" in lines


def test_a_small_dev_shm_is_warned_of():
    """In a mount namespace of its own, with the /dev/shm that Docker gives a container."""
    small = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=64m tmpfs /dev/shm && exec {TESSERA} env --json"]
    try:
        result = subprocess.run(small, env=environment(), capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if result.returncode != 0:
        pytest.skip("this user may not mount")
    row = next(row for row in json.loads(result.stdout) if row["topic"] == "/dev/shm" and row["name"] == "size")
    assert row["number"] == 64 * 2**20 and "--shm-size" in row["warning"]


def test_ds_report_says_the_same():
    path = os.pathsep.join([str(TESSERA.parent / "python"), str(REPOSITORY / "python" / "deepspeed")])
    report = subprocess.run([sys.executable, "-m", "deepspeed.env_report"], env=environment(PYTHONPATH=path, TESSERA_BACKEND="mpi"),
                            capture_output=True, text=True, timeout=120)
    assert report.returncode == 0, report.stderr
    lines = report.stdout.splitlines()
    found = facts(env={"TESSERA_BACKEND": "mpi"})
    for key in (("versions", "LibTorch"), ("/dev/shm", "size"), ("host", "name"), ("limits", "core files (ulimit -c)")):
        assert any(line.startswith(f"{key[0]}: {key[1]} ") and line.endswith(f" {found[key]['value']}") for line in lines), key
    assert any("[WARNING]" in line and "does not work here" in line for line in lines)
