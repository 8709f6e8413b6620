"""Hugging Face's Trainer trains, evaluates, saves and resumes on the drop-in as it does on plain DDP."""

import pytest
import tiny_models
from ranks import asked_for, run_for_json

# The engine adds gradients in another order than DDP, and Adam divides small numbers by small numbers.
LOSS, NORM, WEIGHT = 1e-6, 1e-5, 5e-6


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory, here):
    return run_for_json(here / "trainer_runs.py", tmp_path_factory.mktemp("trainer"), *asked_for(request, "kind"), timeout=600)


CASES = ["0", "1", "2", "3", "3 without zero.Init"]
SAMPLE = ("t5", "llama with LoRA")


@pytest.mark.sample(*(f"{kind}-{case}" for kind in SAMPLE for case in CASES))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_losses_norms_and_weights_are_those_of_ddp(runs, kind, case):
    ours, plain = runs[kind][case], runs[kind]["plain"]
    assert len(plain["whole"]["loss"]) == 4
    assert ours["whole"]["loss"] == pytest.approx(plain["whole"]["loss"], rel=LOSS)
    assert ours["whole"]["eval_loss"] == pytest.approx(plain["whole"]["eval_loss"], rel=LOSS)
    assert ours["whole"]["grad_norm"] == pytest.approx(plain["whole"]["grad_norm"], rel=NORM)
    assert ours["weights"] <= WEIGHT


@pytest.mark.sample(*(f"{kind}-{case}" for kind in SAMPLE for case in CASES[:4]))
@pytest.mark.parametrize("case", CASES[:4])
@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_a_resumed_run_goes_on_with_the_same_numbers(runs, kind, case):
    assert runs[kind][case]["resumed"] == runs[kind][case]["whole"]


@pytest.mark.sample(*SAMPLE)
@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_from_pretrained_makes_partitioned_parameters_at_stage_3_alone(runs, kind):
    assert [case for case in CASES if runs[kind][case]["made_partitioned"]] == ["3"]
