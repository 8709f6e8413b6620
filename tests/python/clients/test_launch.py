"""A script that `accelerate launch` starts with the YAML of the examples trains as torchrun's plain DDP does."""

import json
import subprocess
import sys

import pytest
import ranks
import tiny_models
import yaml

EXAMPLE = ranks.ROOT / "examples" / "python" / "accelerate_zero3.yaml"


def launched(folder, program, *launcher):
    result = folder / "result.json"
    done = subprocess.run([sys.executable, "-m", *map(str, launcher), str(program), str(folder.parent / "model"), str(result)],
                          env=ranks.environment(PYTHONPATH=ranks.PATH_WITH_START), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    return json.loads(result.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch")
    tiny_models.make("gpt2").save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def plain(folder, here):
    own = folder / "plain"
    own.mkdir()
    return launched(own, here / "launched_loop.py", "torch.distributed.run", "--nproc_per_node=2",
                    f"--master_port={ranks.free_port()}")


@pytest.mark.sample("3")
@pytest.mark.parametrize("stage", [2, 3])
def test_losses_are_those_of_ddp(stage, folder, plain, here):
    own = folder / f"stage {stage}"
    own.mkdir()
    config = yaml.safe_load(EXAMPLE.read_text())
    config["deepspeed_config"].update(zero_stage=stage, gradient_accumulation_steps=2, zero3_init_flag=stage == 3)
    (own / "accelerate.yaml").write_text(yaml.safe_dump(config))
    found = launched(own, here / "launched_loop.py", "accelerate.commands.launch", "--config_file", own / "accelerate.yaml",
                     "--main_process_port", ranks.free_port())
    assert plain["engine"] == "DistributedDataParallel" and found["engine"] == "DeepSpeedEngine"
    assert found["made_partitioned"] == (stage == 3)
    assert plain["loss"][-1] < 0.9 * plain["loss"][1]  # it trains
    assert found["loss"] == pytest.approx(plain["loss"], rel=1e-6)
