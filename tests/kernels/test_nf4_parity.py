"""NF4 weights in C++ against bitsandbytes on the same weights, bit by bit: codes, scales, and the numbers that they stand for."""

import os
import pathlib
import subprocess

import bitsandbytes.functional
import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release")) / "tests" / "nf4_tool"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def weights():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator)
    spikes = 0.01 * normal(300, 128)
    spikes[::7, ::11] = 3
    magnitudes = normal(520, 64) * 10 ** torch.randint(-30, 30, (520, 1), generator=generator)
    return {"square": 0.02 * normal(64, 64), "wide": normal(256, 1024), "rows": normal(1000, 64), "spikes": spikes, "zeros": torch.zeros(70, 64),
            "partly zero": torch.cat([torch.zeros(300, 64), normal(40, 64)]), "alike": torch.full((128, 64), -0.3), "magnitudes": magnitudes,
            "denormal": normal(8, 64) * 1e-40, "bf16": (0.05 * normal(128, 64)).bfloat16().float(), "large": 0.02 * normal(2200, 1024),
            # Their rows do not end with a block: see test_numbers_are_bitsandbytes.
            "odd": normal(3, 35), "short": normal(7, 100), "one": normal(1, 1)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    if not TOOL.exists():
        pytest.skip(f"{TOOL} is not built")
    folder = tmp_path_factory.mktemp("nf4")
    save_file(weights(), folder / "in.safetensors")
    done = subprocess.run([TOOL, folder / "in.safetensors", folder / "out.safetensors"], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert done.returncode == 0, done.stderr
    return load_file(folder / "out.safetensors")


def quantized_by_bitsandbytes(weight):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the mean of many scales depends on it
    try:
        return bitsandbytes.functional.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    finally:
        torch.set_num_threads(threads)


def bytes_of(codes, state):
    """In the order of tessera/kernels/nf4.h: (blocks, nested)."""
    codes = torch.nn.functional.pad(codes.flatten(), (0, -codes.numel() % 32)).view(-1, 32)
    return torch.cat([codes, state.absmax.unsqueeze(1)], 1).flatten(), torch.cat([state.state2.absmax.view(torch.uint8), state.offset.reshape(1).view(torch.uint8)])


@pytest.mark.parametrize("name", weights())
def test_bytes_are_bitsandbytes(made, name):
    weight = weights()[name]
    wanted = bytes_of(*quantized_by_bitsandbytes(weight))
    for what, want in zip(("blocks", "nested"), wanted, strict=True):
        got = made[f"{what}/{name}"]
        assert got.shape == want.shape
        assert torch.equal(got, want), f"{(got != want).sum()} of {want.numel()} bytes of {what} differ, first {(got != want).nonzero()[:5].flatten().tolist()}"
    assert weight.numel() < 1000 or name in ("zeros", "alike") or len(wanted[0].unique()) > 200


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name, weight in weights().items() if weight.shape[1] % 64 == 0])
def test_numbers_are_bitsandbytes(made, name, dtype):
    """Where rows are whole blocks: elsewhere bitsandbytes 0.50.2 takes other blocks' scales on a CPU with AVX-512."""
    codes, state = quantized_by_bitsandbytes(weights()[name])
    state.dtype = DTYPES[dtype]
    want = bitsandbytes.functional.dequantize_4bit(codes, state)
    assert torch.equal(made[f"{dtype}/{name}"], want)
