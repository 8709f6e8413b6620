"""Weights as files of Hugging Face's layout, written by the engine's library and read by torch and safetensors."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tessera import _core, full_weights

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool)


def state():
    made = {f"of.{dtype}".replace("torch.", ""): torch.arange(12).reshape(3, 4).to(dtype) for dtype in DTYPES}
    return {**made, "scalar": torch.tensor(3), "turned": torch.arange(6.0).reshape(2, 3).t()}


def same(a, b):
    return a.keys() == b.keys() and all(a[key].dtype == b[key].dtype and torch.equal(a[key], b[key]) for key in a)


def test_every_dtype_and_a_tied_weight_as_torch_reads_them(tmp_path):
    _core.write_weight_files(tmp_path, list(state().items()), {"head": "turned"}, False, "")
    found = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    assert found["head"].data_ptr() == found["turned"].data_ptr()
    assert same(found, {**state(), "head": state()["turned"]})


def test_every_dtype_as_safetensors_reads_them(tmp_path):
    _core.write_weight_files(tmp_path, list(state().items()), {"head": "turned"}, True, "")
    assert same(load_file(tmp_path / "model.safetensors"), state())


@pytest.mark.parametrize("safe", [False, True])
def test_files_of_a_size_have_an_index(tmp_path, safe):
    _core.write_weight_files(tmp_path, list(state().items()), {"head": "turned"}, safe, "100B")
    index = json.loads((tmp_path / ("model.safetensors.index.json" if safe else "pytorch_model.bin.index.json")).read_text())
    assert index["metadata"]["total_size"] == sum(each.numel() * each.element_size() for each in state().values())
    read = load_file if safe else torch.load
    parts = {name: read(tmp_path / name) for name in set(index["weight_map"].values())}
    assert len(parts) > 3
    assert same({key: parts[file][key] for key, file in index["weight_map"].items()},
                {**state(), **({} if safe else {"head": state()["turned"]})})
    for part in parts.values():
        sizes = {each.data_ptr(): each.numel() * each.element_size() for each in part.values()}
        assert len(sizes) == 1 or sum(sizes.values()) <= 100


@pytest.mark.parametrize("size", ["5 elephants", "GB", "0", "-1"])
def test_a_size_that_is_none_is_refused(tmp_path, size):
    with pytest.raises(ValueError, match="is not a size"):
        _core.write_weight_files(tmp_path, [], {}, True, size)


def test_tied_weights_stay_tied_in_another_dtype(tmp_path):
    """As torch reads them from what a checkpoint's conversion writes."""
    shared = torch.arange(6.0)
    _core.write_checkpoint(tmp_path, "global_step1", [("embedding", (2, 3), {"weight": torch.float32}, 0)],
                           read=lambda name, kind: shared, aliases={"head": "embedding"}, engine_state={}, client_state={})
    full_weights.convert(tmp_path, tmp_path / "out", dtype=torch.bfloat16)
    found = torch.load(tmp_path / "out" / "pytorch_model.bin")
    assert found["head"].data_ptr() == found["embedding"].data_ptr()
    assert same(found, {key: shared.view(2, 3).bfloat16() for key in ("embedding", "head")})
