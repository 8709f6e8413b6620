"""TRL's SFTTrainer fine-tunes LoRA adapters on the drop-in with the losses of plain DDP."""

import pytest
from ranks import run_for_json


@pytest.fixture(scope="module")
def runs(tmp_path_factory, here):
    return run_for_json(here / "sft_runs.py", tmp_path_factory.mktemp("sft"))


@pytest.mark.parametrize("stage", ["2", "3"])
def test_losses_and_norms_are_those_of_ddp(runs, stage):
    ours, plain = runs[stage], runs["plain"]
    assert (ours["engine"], plain["engine"]) == ("DeepSpeedEngine", "DistributedDataParallel")
    assert len(plain["loss"]) == 6 and plain["loss"][-1] != pytest.approx(plain["loss"][0], rel=1e-2)  # it trains
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    # Sums in another order than DDP's.
    assert ours["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-5)


def test_the_model_is_made_partitioned_at_stage_3_alone(runs):
    assert runs["3"]["held"] == 0
    assert runs["2"]["held"] == runs["plain"]["held"] > 0
