"""Accelerate's loop on the drop-in: losses, rates, weights and resumed runs are those of plain DDP."""

import math

import pytest
import tiny_models
from ranks import run_for_json

STAGES = [f"stage {stage}" for stage in range(4)]
NAMED = ["named in the configuration", "named in the configuration, offloaded"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, here):
    return run_for_json(here / "accelerate_runs.py", tmp_path_factory.mktemp("accelerate"))


@pytest.mark.parametrize("case", [*STAGES, "offloaded"])
def test_same_as_ddp(runs, case):
    assert runs[case]["loss"] == pytest.approx(runs["plain"]["loss"], rel=1e-6)
    assert runs[case]["lr"] == runs["plain"]["lr"]
    assert runs[case]["weights"] < 2e-6
    assert runs[case]["unwrapped"] == runs["plain"]["unwrapped"] == "GPT2LMHeadModel"


@pytest.mark.parametrize("case", [*STAGES, "offloaded", *NAMED])
def test_a_resumed_run_goes_on(runs, case):
    assert runs[case]["resumed"] == runs[case]["loss"][4:]


@pytest.mark.parametrize("case", NAMED)
def test_optimizer_and_scheduler_of_the_configuration(runs, case):
    """The rate of WarmupDecayLR after each micro step: lr * ln(n + 1) / ln(4) after step n + 1, n from 0."""
    rates = [0, 0, 0, math.log(2) / math.log(4), math.log(2) / math.log(4), math.log(3) / math.log(4)]
    assert runs[case]["lr"] == pytest.approx([1e-3 * rate for rate in rates])
    assert runs[case]["loss"][:2] == pytest.approx(runs["plain"]["loss"][:2], rel=1e-6)
    assert runs[case]["loss"] == runs[NAMED[0]]["loss"]


@pytest.mark.sample("gpt2")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_every_rank_may_save(kind, here, tmp_path):
    """Ranks but 0 have no state dict: transformers looks at the partitioned parameters there. GPT-2's head is its embedding."""
    difference, names = run_for_json(here / "saved_by_all_ranks.py", tmp_path, kind)
    assert difference == 0
    assert names == len(tiny_models.make(kind).state_dict()) - (kind == "gpt2")
