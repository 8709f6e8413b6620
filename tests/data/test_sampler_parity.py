"""epoch_order against torch.utils.data.DistributedSampler, through tokenize_tool (see test_tokenizer_parity.py)."""

import os
import pathlib
import subprocess

import pytest

data = pytest.importorskip("torch.utils.data")

ROOT = pathlib.Path(__file__).parents[2]
TOOL = ROOT / os.environ.get("TESSERA_BUILD", "build/release") / "tests/tokenize_tool"


def reference(n, world, seed, epoch, drop_last):
    """The ranks' orders, interleaved."""
    ranks = []
    for rank in range(world):
        sampler = data.DistributedSampler(range(n), num_replicas=world, rank=rank, seed=seed, drop_last=drop_last)
        sampler.set_epoch(epoch)
        ranks.append(list(sampler))
    return [index for turn in zip(*ranks) for index in turn]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    "n, world, seed, epoch",
    [(1, 1, 0, 0), (7, 3, 1, 2), (10, 4, 42, 0), (4358, 4, 42, 3), (6238, 8, 0, 1), (100_000, 3, 2**31, 5), (9, 2, 2**32 + 5, 1), (3, 8, 1, 0)],
)
def test_epoch_order_is_distributed_samplers(n, world, seed, epoch, drop_last):
    if not TOOL.exists():
        pytest.skip(f"{TOOL} is not built")
    arguments = [str(word) for word in (n, world, seed, epoch, int(drop_last))]
    done = subprocess.run([TOOL, "order", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [int(word) for word in done.stdout.split()] == reference(n, world, seed, epoch, drop_last)
