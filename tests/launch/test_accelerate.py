"""What is read of Accelerate's configuration is what Accelerate's own launcher makes of it."""

import json
import subprocess

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import launch as prepared
from accelerate.utils.dataclasses import DeepSpeedPlugin
from tessera_runs import TESSERA, environment

TOOL = TESSERA.parent / "tests" / "accelerate_tool"
# Of any launcher, or of the machine (accelerate_config.h).
LEFT_OUT = {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PYTHONPATH"}

# What `accelerate config` asks for and writes of runs that there are here, and TRL's zero*.yaml.
AS_WRITTEN = {"compute_environment": "LOCAL_MACHINE", "debug": False, "downcast_bf16": "no", "enable_cpu_affinity": False,
              "machine_rank": 0, "main_training_function": "main", "num_machines": 1, "rdzv_backend": "static", "same_network": True,
              "tpu_env": [], "tpu_use_cluster": False, "tpu_use_sudo": False, "use_cpu": False, "num_processes": 4}
FILES = {
    "one process": {"distributed_type": "NO", "mixed_precision": "no", "num_processes": 1},
    "one process on the CPU": {"distributed_type": "NO", "mixed_precision": "bf16", "num_processes": 1, "use_cpu": True},
    "CPUs": {"distributed_type": "MULTI_CPU", "mixed_precision": "bf16", "use_cpu": True},
    "devices": {"distributed_type": "MULTI_GPU", "mixed_precision": "fp16", "gpu_ids": "all"},
    "some devices, for debugging": {"distributed_type": "MULTI_GPU", "gpu_ids": "0,1,2,5", "debug": True},
    "the old name of fp16": {"distributed_type": "MULTI_GPU", "fp16": True},
    "two machines": {"distributed_type": "MULTI_GPU", "num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.5",
                     "main_process_port": 29511},
    "zero 1": {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "deepspeed_config": {
        "deepspeed_multinode_launcher": "standard", "gradient_accumulation_steps": 1, "zero3_init_flag": False, "zero_stage": 1}},
    "zero 2": {"distributed_type": "DEEPSPEED", "mixed_precision": "fp16", "deepspeed_config": {
        "zero_stage": 2, "gradient_accumulation_steps": "auto", "gradient_clipping": 0.5, "offload_optimizer_device": "cpu",
        "offload_param_device": "none"}},
    "zero 3": {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "deepspeed_config": {
        "deepspeed_multinode_launcher": "standard", "offload_optimizer_device": "none", "offload_param_device": "none",
        "zero3_init_flag": True, "zero3_save_16bit_model": True, "zero_stage": 3, "gradient_clipping": 1.0,
        "deepspeed_moe_layer_cls_names": "MixtralSparseMoeBlock"}},
    "nothing but the type": {"distributed_type": "DEEPSPEED"},
    "two machines by a hostfile": {"distributed_type": "DEEPSPEED", "num_machines": 2, "deepspeed_config": {
        "deepspeed_hostfile": "hosts", "deepspeed_multinode_launcher": "pdsh", "zero_stage": 1}},
    "DeepSpeed's own file": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "/dev/null", "zero3_init_flag": True}},
}


def ours(folder, config):
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    result = subprocess.run([TOOL, path], env=environment(), capture_output=True, text=True, timeout=60, check=True)
    return json.loads(result.stdout)


def accelerates(folder, config, monkeypatch):
    """(arguments, variables) of Accelerate's launcher, as launch_command chooses among its own."""
    for name in ("ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES", "KMP_AFFINITY", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    path = folder / "theirs.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, defaults, has_precision = _validate_launch_command(args)
    before = set(prepared.os.environ.items())
    if args.use_deepspeed:
        fields = list(defaults.deepspeed_config) + (["mixed_precision"] if has_precision else [])
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        variables = prepared.prepare_deepspeed_cmd_env(args)[1]
    elif args.multi_gpu:
        variables = prepared.prepare_multi_gpu_env(args)
    else:
        variables = prepared.prepare_simple_launcher_cmd_env(args)[1]
    return args, {name: value for name, value in variables.items() if (name, value) not in before and name not in LEFT_OUT}


@pytest.mark.parametrize("name", FILES)
def test_the_program_finds_what_it_would_under_accelerate(tmp_path, name, monkeypatch):
    config = {**AS_WRITTEN, **FILES[name]}
    found = ours(tmp_path, config)
    args, variables = accelerates(tmp_path, config, monkeypatch)
    assert found["variables"] == variables
    assert (found["num_processes"], found["num_machines"], found["machine_rank"]) == \
           (args.num_processes, args.num_machines, args.machine_rank)
    assert found["main_process_ip"] == (args.main_process_ip or "")
    if config["distributed_type"] == "DEEPSPEED":
        assert found["multinode_launcher"] == args.deepspeed_multinode_launcher
    assert found["warnings"] == []


@pytest.mark.parametrize("changes", [
    {"distributed_type": "MULTI_GPU", "num_procesess": 3},
    {"distributed_type": "MULTI_GPU", "gpu_ids": "0"},
    {"distributed_type": "MULTI_TPU"},
    {"distributed_type": "DEEPSPEED", "mixed_precision": "bf61"},
])
def test_what_accelerate_refuses_is_refused(tmp_path, changes, monkeypatch):
    config = {**AS_WRITTEN, **changes}
    with pytest.raises(ValueError):
        accelerates(tmp_path, config, monkeypatch)
    assert "error" in ours(tmp_path, config)


@pytest.mark.parametrize("key, value", [
    ("gradient_accumulation_steps", 2), ("gradient_clipping", 1.0), ("zero_stage", 2), ("offload_optimizer_device", "cpu"),
    ("offload_param_device", "cpu"), ("zero3_save_16bit_model", True), ("offload_optimizer_nvme_path", "/scratch"),
    ("offload_param_nvme_path", "/scratch"), ("mixed_precision", "bf16")])
def test_what_deepspeeds_own_file_has_to_say_is_refused_beside_it(tmp_path, key, value, monkeypatch):
    """Accelerate refuses it in the program, by ACCELERATE_CONFIG_DS_FIELDS."""
    block = {"deepspeed_config_file": "/dev/null"}
    config = {**AS_WRITTEN, "distributed_type": "DEEPSPEED", "deepspeed_config": block}
    (config if key == "mixed_precision" else block)[key] = value
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", accelerates(tmp_path, config, monkeypatch)[1]["ACCELERATE_CONFIG_DS_FIELDS"])
    with pytest.raises(ValueError, match="will be ignored"):
        DeepSpeedPlugin._deepspeed_config_checks(None)
    assert f"'{key}' and 'deepspeed_config_file' are both given" in ours(tmp_path, config)["error"]
