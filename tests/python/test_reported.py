"""What users of DeepSpeed reported in the last years goes right here. The numbers of the threads: reported_runs.py."""

from pathlib import Path

import pytest
from ranks import run_for_json
from test_engine import assert_same


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("reported_runs.py"), timeout=900)


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_block_called_several_times(runs, times, accumulation):
    found = runs["a_block_called_several_times"][f"{times} times, {accumulation} micro batches"]
    assert_same(found["expected"], found["results"])
    alike = [[0, 1, 2, 3]] if accumulation == 1 else [[0, 1], [2, 3]]
    for stages in alike:
        assert len({str(found["bf16"][stage]) for stage in stages}) == 1
        assert len({str(found["results"][stage]) for stage in stages}) == 1
    for losses in found["bf16"]:
        assert losses == pytest.approx(found["expected"][0], rel=3e-2)


@pytest.mark.parametrize("how", ["plain", "reentrant"])
def test_a_frozen_base_is_recomputed(runs, how):
    found = runs["a_frozen_base_that_is_recomputed"][how]
    assert_same(found["expected"], found["results"])


def test_muon_is_on_under_zero_init_and_steps_once_for_all_micro_batches(runs):
    found = runs["muon_under_zero_init"]
    assert found["same"]
    (losses, norms), (other_losses, other_norms) = found["micro batches"]
    assert losses == pytest.approx(other_losses, rel=1e-3) and norms == pytest.approx(other_norms, rel=1e-3)


def test_several_backwards_before_a_step_add_up(runs):
    found = runs["several_backwards_before_a_step"]
    assert_same(found["expected"], found["results"])


@pytest.mark.parametrize("stage", "0123")
def test_no_micro_batch_stays_local(runs, stage):
    norms = runs["gradients_in_fp32_beside_bf16"][stage]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-6)


def test_bf16_is_the_same_at_every_stage(runs):
    first, *others = runs["bf16_at_every_stage"]
    assert len(first) == 3 and all(norms == first for norms in others)


@pytest.mark.parametrize("stage", "0123")
def test_an_overflow_on_one_rank_skips_on_all(runs, stage):
    found = runs["an_overflow_on_one_rank"][stage]
    assert (found["skipped"], found["steps"]) == (1, 4)
    rates = found["rates"]
    assert rates[0] == rates[1] < rates[2] < rates[3]


def test_one_buffer_is_enough_for_any_unit(runs):
    found = runs["few_buffers_for_a_large_unit"]
    assert_same(found["expected"], found["results"])


def test_parameters_of_odd_sizes_train_everywhere(runs):
    found = runs["parameters_of_odd_sizes"]
    assert len(found["results"]) == 10
    assert_same(found["expected"], found["results"].values())


def test_a_thousand_gathers_leave_nothing_behind(runs):
    found = runs["gathering_a_thousand_times"]
    assert found["same"] and found["falls"]
    assert found["most"] == found["of a block"] > 0 and found["left"] == 0


@pytest.mark.parametrize("kind", ["Model", "Untied"])
def test_embeddings_can_be_resized(runs, kind):
    found = runs["embeddings_that_are_resized"][kind]
    assert [found["gathered"], found["before"]] == pytest.approx([found["expected"]] * 2, rel=1e-6)


def test_zero_init_takes_the_batch_of_all_ranks(runs):
    assert runs["batch_keys_under_zero_init"] == [8, 2, 2]


@pytest.mark.parametrize("stage", "0123")
def test_an_infinity_in_bf16_changes_nothing(runs, stage):
    assert runs["one_infinity_in_bf16"][stage] == {"skipped": 1, "same": True}


def test_a_schedule_keeps_the_rates_of_groups_apart(runs):
    rates = runs["rates_of_several_groups"]
    for first, second in rates:
        assert first == pytest.approx(10 * second)
    assert len({first for first, _ in rates}) == len(rates)


def test_a_universal_resume_goes_on_where_it_was(runs):
    for first, expected in runs["a_universal_resume"]:
        assert first == expected
