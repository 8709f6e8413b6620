"""The same script beside DeepSpeed 0.19.8's own: losses and saved weights. `make peers-test` installs DeepSpeed and runs these.

In fp32 nothing is made equal: the two run the same program with the same configuration. In 16 bits three things differ by design, and
are made equal first (peer_runs.case): what the fp32 master weights begin with, an empty first step at DeepSpeed's stage 0, and its own
linear layer at stage 3. The last tests show each of them alone.
"""

from pathlib import Path

import pytest
import torch
from peer_cases import CASES, DIFFERENT
from peers import largest_difference, needs_deepspeed, run_deepspeed_for_json
from ranks import run_for_json

pytestmark = needs_deepspeed
LOSS = {"fp32": 1e-5, "bf16": 1e-3, "fp16": 1e-3}  # 16 bits: a rounding is 2^-8 in bf16, 2^-11 in fp16
WEIGHT = {"fp32": {"rtol": 1e-4, "atol": 1e-5}, "bf16": {"rtol": 2**-7, "atol": 1e-3}, "fp16": {"rtol": 2**-7, "atol": 1e-3}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    program = Path(__file__).with_name("peer_runs.py")
    folders = [tmp_path_factory.mktemp(name) for name in ("ours", "theirs")]
    return run_for_json(program, folders[0], timeout=600), run_deepspeed_for_json(program, folders[1], timeout=1200), folders


@pytest.mark.parametrize("name", [name for name in CASES if name not in DIFFERENT])
def test_same_losses_and_weights(runs, figure, name):
    ours, theirs, folders = runs
    precision = name[:4]
    assert figure(name, largest_difference(ours[name], theirs[name])) <= LOSS[precision]
    saved = [torch.load(folder / f"{name}.pt") for folder in folders]
    assert saved[0].keys() == saved[1].keys()
    for key, value in saved[1].items():
        torch.testing.assert_close(saved[0][key], value, **WEIGHT[precision])


@pytest.mark.parametrize("name", DIFFERENT)
def test_each_of_the_things_that_are_made_equal_makes_a_difference(runs, figure, name):
    ours, theirs, _ = runs
    equal = DIFFERENT[name]
    assert figure(name, largest_difference(ours[name], theirs[name])) > 2 * largest_difference(ours[equal], theirs[equal])
