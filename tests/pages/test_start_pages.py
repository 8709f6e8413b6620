"""Every command of docs/start-*.md runs as it stands there: on this machine, or on two hosts named as on the pages."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cluster import Cluster, why_not
from model_folders import write_texts, write_tiny_bert
from readme import block
from tessera_runs import REPOSITORY, TESSERA, environment, finish, largest_difference, metrics, steps_done, wait_until

STEPS, MORE_STEPS = 4, 6
PATH = f"{TESSERA.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
SETTINGS = {"PATH": PATH, "OMP_NUM_THREADS": 1, "OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1,
            "OMPI_MCA_rmaps_base_oversubscribe": 1}


def blocks(page, language=""):
    text = (REPOSITORY / "docs" / f"start-{page}.md").read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [body for of_language, body in found if of_language == language]


def commands(page, language=""):
    return [line.replace("max_steps=2000", f"max_steps={MORE_STEPS}") for text in blocks(page, language) for line in text.splitlines()]


def write_folder(folder):
    """README's run file and what it names."""
    write_tiny_bert(folder / "models" / "bert-base-uncased")
    write_texts(folder / "wikitext.parquet", 200)
    write_texts(folder / "held-out.parquet", 32, seed=2)
    run_file = block("Your own run", "yaml").replace("max_steps: 1000", f"max_steps: {STEPS}").replace("max_length: 128", "max_length: 32")
    (folder / "run.yaml").write_text(run_file)
    (folder / "ds_config.json").write_text(block("Your own run", "json"))
    (folder / "train").write_text("#!/bin/sh\n")
    (folder / "train").chmod(0o755)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path)


def here(command, folder, **extra):
    result = subprocess.run(["bash", "-c", command], cwd=folder, env=environment(**SETTINGS, **extra), text=True, capture_output=True,
                            timeout=180, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, f"{command}\nexit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture
def hosts(tmp_path_factory):
    """node1 and node2, whose shells find what the pages call."""
    if reason := why_not():
        pytest.skip(reason)
    before = os.environ["PATH"]
    os.environ["PATH"] = PATH
    try:
        with Cluster(tmp_path_factory.mktemp("hosts"), names=["node1", "node2"]) as cluster:
            yield cluster
    finally:
        os.environ["PATH"] = before


def on(host, command, folder, **how):
    return host.start("bash", "-c", command, cwd=folder, env={**SETTINGS, **how})


def done(process):
    result = finish(process, 180)
    assert result.code == 0, str(result)
    return result.out


def test_laptop(folder):
    for command in commands("laptop"):
        here(command, folder)
    assert len(metrics(folder / "out")) == MORE_STEPS and (folder / "hf" / "model.safetensors").exists()


def test_two_machines_with_ssh(hosts, folder):
    (folder / "hosts").write_text(*blocks("ssh", "text"))
    said = {command: done(on(hosts["node1"], command, folder)) for command in commands("ssh")}
    assert "checked 2 ranks on 2 hosts" in said["tessera launch --hostfile hosts --check run.yaml models"]
    assert sorted(re.findall(r"node\d$", said["tessera launch --hostfile hosts hostname"], re.MULTILINE)) == ["node1", "node2"]
    assert len(metrics(folder / "out")) == MORE_STEPS


def test_mpi(hosts, folder):
    (folder / "hosts").write_text(*blocks("ssh", "text"))
    for command in commands("mpi"):
        name = next((each for each in ("openmpi", "mpich") if f"--launcher {each}" in command), None)
        if shutil.which(f"mpirun.{name}" if name else "mpirun") is None:
            continue
        done(on(hosts["node1"], command, folder))
    for output in ("out-hosts", "out-mpi"):
        assert not (folder / output).exists() or largest_difference(metrics(folder / output), metrics(folder / "out")) < 1e-5


def test_torchrun(hosts, folder):
    for command in commands("torchrun"):
        here(command, folder)
    processes = [on(hosts[name], *commands("torchrun", name), folder) for name in ("node1", "node2")]
    for process in processes:
        done(process)
    assert largest_difference(metrics(folder / "out-hosts"), metrics(folder / "out")) < 1e-5


def pods(hosts, folder, data):
    """What the container of each pod would run, on a host of its own; the Service's name stands for node1."""
    service, job = yaml.safe_load_all(*blocks("kubernetes", "yaml"))
    spec = job["spec"]["template"]["spec"]
    container, = spec["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}" == f"bert-0.{spec['subdomain']}"
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(variables["WORLD_SIZE"]) == len(list(hosts))
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    assert container["workingDir"] == next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data")
    variables["MASTER_ADDR"] = "node1"
    return [host.start(*container["command"], *container["args"], cwd=data, env={**SETTINGS, **variables, "JOB_COMPLETION_INDEX": number})
            for number, host in enumerate(hosts)]


def test_kubernetes(hosts, folder):
    """An eviction in the middle, after which the Job starts the pods again."""
    run_file = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(run_file.replace(f"max_steps: {STEPS}", "max_steps: 100000"))
    first = pods(hosts, folder, folder)
    wait_until(lambda: steps_done(folder / "out") >= 2 or any(pod.poll() is not None for pod in first), "two steps")
    for host in hosts:
        for pid, command in host.processes().items():
            if command.startswith("sh -c"):
                os.kill(pid, signal.SIGTERM)
    assert [finish(pod, 180).code for pod in first] == [75, 75]
    steps = len(metrics(folder / "out"))
    (folder / "run.yaml").write_text(run_file.replace(f"max_steps: {STEPS}", f"max_steps: {steps + 2}"))
    for pod in pods(hosts, folder, folder):
        done(pod)
    assert len(metrics(folder / "out")) == steps + 2


def test_notebook(folder):
    """The cell in a process of its own; then the commands of the others."""
    packages = os.pathsep.join([str(TESSERA.parent / "python"), str(REPOSITORY / "python" / "deepspeed")])
    cell, = blocks("notebook", "python")
    (folder / "cell.py").write_text(cell)
    (folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    assert re.search(r"^world size 1, loss \d", here(f"{sys.executable} cell.py", folder, PYTHONPATH=packages), re.MULTILINE)
    launched, trained = [here(command, folder, PYTHONPATH=packages) for command in commands("notebook")]
    assert "rank 0 of 2" in launched and "rank 1 of 2" in launched and trained
    assert json.loads((folder / "out" / "metrics.jsonl").read_text().splitlines()[0])


def test_every_start_page_has_a_test_and_is_linked():
    pages = sorted(path.stem.removeprefix("start-") for path in (REPOSITORY / "docs").glob("start-*.md"))
    assert pages == ["kubernetes", "laptop", "mpi", "notebook", "ssh", "torchrun"]
    readme = (REPOSITORY / "README.md").read_text()
    assert all(f"(docs/start-{page}.md)" in readme for page in pages)
