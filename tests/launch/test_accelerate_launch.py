"""A program that `tessera launch --config` starts finds what `accelerate launch --config_file` gives it, and runs where the file says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tessera_runs import environment, tessera

PROGRAM = """
import json, os, sys
with open(f"{os.environ['FOUND']}/{os.environ.get('RANK', 0)}.json", "w") as file:
    json.dump({"variables": dict(os.environ), "arguments": sys.argv[1:]}, file)
"""
# The launchers' own: torchrun's, which Accelerate starts, and Tessera's. OMP_NUM_THREADS is given to both.
OF_TORCHRUN = {"GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
OF_TESSERA = {"LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "TESSERA_SECRET"}
MEETING_PLACE = {"MASTER_ADDR", "MASTER_PORT"}

ZERO_2 = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "machine_rank": 0,
          "num_machines": 1, "num_processes": 2, "main_training_function": "main", "deepspeed_config": {
              "deepspeed_multinode_launcher": "standard", "gradient_accumulation_steps": 4, "gradient_clipping": 1.0,
              "offload_optimizer_device": "cpu", "zero3_init_flag": False, "zero_stage": 2}}
DEVICES = {"distributed_type": "MULTI_GPU", "mixed_precision": "fp16", "num_machines": 1, "num_processes": 2, "gpu_ids": "1,3"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    # All that Accelerate's launcher asks of DeepSpeed: that it is installed, and a name.
    packages = tmp_path / "packages"
    (packages / "deepspeed" / "launcher").mkdir(parents=True)
    (packages / "deepspeed" / "__init__.py").touch()
    (packages / "deepspeed" / "launcher" / "__init__.py").touch()
    (packages / "deepspeed" / "launcher" / "runner.py").write_text("DEEPSPEED_ENVIRONMENT_NAME = '.deepspeed_env'\n")
    (packages / "deepspeed-0.19.8.dist-info").mkdir()
    (packages / "deepspeed-0.19.8.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8\n")
    return tmp_path


def write(folder, config, name="config.yaml"):
    (folder / name).write_text(yaml.safe_dump(config, sort_keys=False))
    return name


def variables_for(folder, found):
    (folder / found).mkdir()
    path = f"{Path(sys.executable).parent}:{environment()['PATH']}"  # a python3 that is a shell script sets variables of its own
    return {"FOUND": folder / found, "OMP_NUM_THREADS": 1, "PYTHONPATH": folder / "packages", "PATH": path}


def found_by(folder, found, env):
    """[what rank 0, 1, … found that the launcher's own environment did not have]"""
    before = environment(**env)
    ranks = [json.loads((folder / found / f"{rank}.json").read_text()) for rank in range(len(list((folder / found).iterdir())))]
    for rank in ranks:
        rank["variables"] = {name: value for name, value in rank["variables"].items() if before.get(name) != value}
    return ranks


def launched(folder, *options, program=("prog.py", "--lr", "1e-3"), found="ours"):
    env = variables_for(folder, found)
    result = tessera("launch", *options, *program, cwd=folder, env=env)
    assert result.code == 0, str(result)
    return found_by(folder, found, env)


def by_accelerate(folder, config):
    env = variables_for(folder, "theirs")
    subprocess.run([sys.executable, "-m", "accelerate.commands.launch", "--config_file", write(folder, config), "prog.py", "--lr", "1e-3"],
                   cwd=folder, env=environment(**env), check=True, timeout=120, capture_output=True)
    return found_by(folder, "theirs", env)


@pytest.mark.parametrize("config", [ZERO_2, DEVICES], ids=["zero 2", "devices"])
def test_each_process_finds_what_it_would_under_accelerate(folder, config):
    theirs = by_accelerate(folder, config)
    ours = launched(folder, "--config", write(folder, config))
    assert len(ours) == len(theirs) == 2
    for our, their in zip(ours, theirs):
        own = {name for name in their["variables"] if name.startswith("TORCHELASTIC_")} | OF_TORCHRUN | MEETING_PLACE
        expected = {name: value for name, value in their["variables"].items() if name not in own}
        assert "ACCELERATE_MIXED_PRECISION" in expected and "LOCAL_RANK" in expected
        assert {name: value for name, value in our["variables"].items() if name not in OF_TESSERA | MEETING_PLACE} == expected
        assert our["arguments"] == their["arguments"] == ["--lr", "1e-3"]


def test_a_dry_run_shows_the_ranks_and_what_they_get(folder):
    result = tessera("launch", "--config", write(folder, ZERO_2), "--dry-run", "prog.py", cwd=folder)
    assert result.code == 0, str(result)
    assert "2 ranks on 1 host" in result.out and "  ACCELERATE_DEEPSPEED_ZERO_STAGE=2\n" in result.out, str(result)


def test_the_command_line_wins(folder):
    config = write(folder, ZERO_2)
    assert len(launched(folder, "--config", config, "--nproc", 3)) == 3
    devices = launched(folder, "--config", write(folder, DEVICES), "--include", "localhost:2", found="included")
    assert [rank["variables"]["CUDA_VISIBLE_DEVICES"] for rank in devices] == ["2"]


@pytest.mark.parametrize("config", [
    {"distributed_type": "MULTI_GPU", "num_machines": 2, "num_processes": 4},
    {**ZERO_2, "num_machines": 2, "num_processes": 4},
    {**ZERO_2, "num_machines": 2, "num_processes": 4,
     "deepspeed_config": {"deepspeed_multinode_launcher": "nossh", "deepspeed_hostfile": "hosts"}}],
    ids=["devices", "standard", "nossh"])
def test_a_command_on_each_machine_starts_that_machines_ranks(folder, config):
    (folder / "hosts").write_text("a slots=2\nb slots=2\n")
    config = {**config, "machine_rank": 1, "main_process_ip": "10.0.0.5", "main_process_port": 29511}
    env = variables_for(folder, "ours")
    result = tessera("launch", "--config", write(folder, config), "prog.py", cwd=folder, env=env)
    assert result.code == 0, str(result)
    ranks = [json.loads((folder / "ours" / f"{rank}.json").read_text())["variables"] for rank in (2, 3)]
    assert [(rank["RANK"], rank["WORLD_SIZE"], rank["LOCAL_RANK"], rank["LOCAL_WORLD_SIZE"]) for rank in ranks] == \
           [("2", "4", "0", "2"), ("3", "4", "1", "2")]
    assert {(rank["MASTER_ADDR"], rank["MASTER_PORT"]) for rank in ranks} == {("10.0.0.5", "29511")}


def test_hosts_of_a_hostfile_are_reached_by_the_launcher_that_the_file_names(folder):
    (folder / "hosts").write_text("a slots=2\nb slots=2\n")
    config = {**ZERO_2, "num_machines": 2, "num_processes": 4, "main_process_ip": "10.0.0.5",
              "deepspeed_config": {"deepspeed_multinode_launcher": "slurm", "deepspeed_hostfile": "hosts", "zero_stage": 2}}
    result = tessera("launch", "--config", write(folder, config), "--dry-run", "prog.py", cwd=folder)
    assert result.code == 0 and result.out.startswith("srun -n 4 --nodes 2 --gpus-per-node 2 --export=ALL,"), str(result)
    assert ",ACCELERATE_DEEPSPEED_ZERO_STAGE=2," in result.out and ",MASTER_ADDR=10.0.0.5,MASTER_PORT=29500 " in result.out
    config["deepspeed_config"]["deepspeed_exclusion_filter"] = "b"
    result = tessera("launch", "--config", write(folder, config), "--dry-run", "prog.py", cwd=folder)
    assert result.code == 0 and result.out.startswith("srun -n 2 --nodelist a --nodes 1 "), str(result)


@pytest.mark.parametrize("changes, options, says", [
    ({"num_processes": -1}, (), "give --nproc"),
    ({"distributed_type": "NO", "deepspeed_config": {}}, (), "'distributed_type' is 'NO', which is one process"),
    ({}, ("--hostfile", "hosts"), "--hostfile and --config are both given"),
    ({}, ("--num_nodes", 2, "--nproc", 1), "--no_ssh needs --master_addr"),
    ({"num_processes": 3}, ("--num_nodes", 2), "3 processes (num_processes) do not divide among 2 machines"),
])
def test_what_contradicts_itself_or_is_left_open_is_refused(folder, changes, options, says):
    (folder / "hosts").write_text("a slots=2\n")
    result = tessera("launch", "--config", write(folder, {**ZERO_2, **changes}), *options, "prog.py", cwd=folder)
    assert result.code == 2 and says in result.err, str(result)


def test_training_by_a_run_file_takes_no_such_configuration(folder):
    result = tessera("train", "run.yaml", "--config", write(folder, ZERO_2), cwd=folder)
    assert result.code == 2 and "--config" in result.err, str(result)
