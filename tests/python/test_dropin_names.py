"""The package deepspeed as clients find it: its version, its lazy names, and what it says of names that are missing."""

import importlib
import importlib.metadata
import re
import subprocess
import sys

import pytest
import ranks

DROPIN = ranks.ROOT / "python" / "deepspeed"


def in_a_fresh_python(code):
    """Standard output of the code, where only the two packages' folders are on the path."""
    return subprocess.run([sys.executable, "-c", code], env=ranks.environment(), capture_output=True, text=True,
                          timeout=120, check=True).stdout


def test_version_is_the_same_everywhere():
    import deepspeed

    metadata, = DROPIN.glob("*.dist-info/METADATA")
    version = re.search(r"^Version: (.*)", metadata.read_text(), re.MULTILINE)[1]
    assert metadata.parent.name == f"deepspeed-{version}.dist-info"
    assert deepspeed.__version__ == deepspeed.version == version
    assert f"{deepspeed.__version_major__}.{deepspeed.__version_minor__}.{deepspeed.__version_patch__}" == "0.19.8"


def test_commands_are_the_same_in_pyproject_and_dist_info():
    def commands(text):
        return sorted(re.findall(r'^(\S+) = "?(deepspeed\.[\w.]+:\w+)"?', text, re.MULTILINE))

    entry_points = next(DROPIN.glob("*.dist-info")) / "entry_points.txt"
    found = commands(entry_points.read_text())
    assert found == commands((DROPIN.parent / "pyproject.toml").read_text())
    assert [name for name, _ in found] == ["deepspeed", "ds", "ds_report"]
    for _, target in found:
        module, function = target.split(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_path_alone_is_enough_for_clients_that_look_for_the_distribution():
    # accelerate and transformers look for a module and for metadata of that very name.
    out = in_a_fresh_python("import importlib.util as u, importlib.metadata as m\n"
                            "print(u.find_spec('deepspeed') is not None, m.metadata('deepspeed')['Name'])")
    assert out.split() == ["True", "deepspeed"]


def test_importing_it_does_not_load_torch():
    assert in_a_fresh_python("import sys, deepspeed; print('torch' in sys.modules)").strip() == "False"


def test_chains_of_attributes_work_after_one_import():
    out = in_a_fresh_python("import deepspeed\n"
                            "print(deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES[0],\n"
                            "      deepspeed.zero.config.__name__, deepspeed.checkpointing.is_configured(), deepspeed.utils.logger.name,\n"
                            "      deepspeed.comm.is_initialized(), deepspeed.pipe.LayerSpec.__name__)")
    assert out.split() == ["LRRangeTest", "deepspeed.runtime.zero.config", "False", "DeepSpeed", "False", "LayerSpec"]


@pytest.mark.parametrize("name", ["init_inference", "DeepSpeedHybridEngine", "inference"])
def test_a_name_that_is_missing_says_so(name):
    import deepspeed

    with pytest.raises(AttributeError, match=f"deepspeed.{name} is not in Tessera yet"):
        getattr(deepspeed, name)
    assert not hasattr(deepspeed, name)


def test_a_method_of_the_engine_that_is_missing_says_so():
    import deepspeed
    import torch

    engine = deepspeed.initialize(model=torch.nn.Linear(2, 2), config={"train_batch_size": 1, "optimizer": {"type": "Adam"}})[0]
    with pytest.raises(AttributeError, match="DeepSpeedEngine.get_wall_clock_timers is not in Tessera yet"):
        engine.get_wall_clock_timers()
    with pytest.raises(AttributeError, match="neither DeepSpeedEngine nor Linear has 'get_wall_clocks'"):
        engine.get_wall_clocks()


@pytest.mark.parametrize("statement, missing", [
    ("import deepspeed.inference.v2.ragged", "deepspeed.inference"),
    ("from deepspeed import DeepSpeedTransformerLayer", "deepspeed.DeepSpeedTransformerLayer"),
    ("from deepspeed.runtime.pipe import dualpipev", "deepspeed.runtime.pipe.dualpipev"),
])
def test_an_import_that_is_missing_says_so(statement, missing):
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"{missing} is not in Tessera yet")):
        exec(statement, {})


def test_names_that_deepspeed_has_not_either_fail_as_ever():
    import deepspeed

    with pytest.raises(AttributeError, match="^module 'deepspeed' has no attribute 'nonsense'$"):
        deepspeed.nonsense
    with pytest.raises(ModuleNotFoundError, match="^No module named 'deepspeed.nonsense'$"):
        importlib.import_module("deepspeed.nonsense")


def test_config_arguments():
    import argparse

    import deepspeed

    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    found = parser.parse_args(["--deepspeed", "--deepspeed_config", "ds.json"])
    assert (found.deepspeed, found.deepspeed_config) == (True, "ds.json")
    found = parser.parse_args([])
    assert (found.deepspeed, found.deepspeed_config) == (False, None)


def test_attributes_by_dotted_names_are_those_that_deepspeed_chat_sets():
    import torch
    from deepspeed.compression.helper import recursive_getattr, recursive_setattr

    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert recursive_getattr(model, "0.0.weight") is model[0][0].weight
    recursive_setattr(model, "0.0", torch.nn.ReLU())
    recursive_setattr(model, "name", 7)
    assert isinstance(model[0][0], torch.nn.ReLU) and model.name == 7


def test_the_backend_hands_out_torchs_collectives():
    """DeepSpeedExamples' benchmark of communication asks for them."""
    import torch
    from deepspeed.comm import TorchBackend

    assert TorchBackend.get_all_gather_function() is torch.distributed.all_gather_into_tensor
    assert TorchBackend.get_reduce_scatter_function() is torch.distributed.reduce_scatter_tensor
