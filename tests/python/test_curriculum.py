"""How hard a step's samples are: what programs such as GPT-NeoX ask of DeepSpeed's CurriculumScheduler."""

import pytest
from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler


def curriculum(kind, **options):
    return CurriculumScheduler({"min_difficulty": 8, "max_difficulty": 128, "schedule_type": kind, "schedule_config": options})


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_a_root_of_the_steps_in_whole_units(degree):
    """The hardest multiple of the unit that the curve from the easiest to the hardest has passed."""
    kinds = {1: [("fixed_linear", {})]}.get(degree, []) + [("fixed_root", {"root_degree": degree})]
    for kind, more in kinds:
        schedule = curriculum(kind, total_curriculum_step=1000, difficulty_step=8, **more)
        for multiple in range(16, 129, 8):
            first = next(step for step in range(1001) if schedule.get_difficulty(step) >= multiple)
            assert first == pytest.approx(1000 * ((multiple - 8) / 120) ** degree, abs=1)
        assert [schedule.get_difficulty(step) for step in (0, 1000, 5000)] == [8, 128, 128]


def test_a_difficulty_for_each_range_of_steps():
    schedule = curriculum("fixed_discrete", difficulty=[8, 32, 128], max_step=[5, 10])
    assert [schedule.get_difficulty(step) for step in (0, 5, 6, 10, 11, 99)] == [8, 8, 32, 32, 128, 128]


def test_the_first_difficulty_is_whole_units_and_no_less_than_the_easiest():
    schedule = curriculum("fixed_linear", total_curriculum_step=1000, difficulty_step=16)
    assert [schedule.get_difficulty(step) for step in (0, 200, 1000)] == [16, 32, 128]


def test_the_current_one_follows_until_the_hardest_is_reached():
    schedule = curriculum("fixed_linear", total_curriculum_step=10, difficulty_step=8)
    assert schedule.get_current_difficulty() == 8
    assert [schedule.update_difficulty(step) for step in (5, 10, 1)] == [64, 128, 128]
    other = curriculum("fixed_linear", total_curriculum_step=10, difficulty_step=8)
    other.set_state(schedule.get_state())
    assert other.get_current_difficulty() == 128
    other.set_current_difficulty(16)
    assert other.update_difficulty(2) == 32


def test_a_function_of_the_programs_own():
    schedule = CurriculumScheduler({"min_difficulty": 1, "max_difficulty": 9, "schedule_type": "custom"})
    with pytest.raises(ValueError, match="set_custom_get_difficulty"):
        schedule.update_difficulty(1)
    schedule.set_custom_get_difficulty(lambda step: 2 * step)
    assert schedule.update_difficulty(3) == 6


@pytest.mark.parametrize("kind, options, error, message", [
    ("cubic", {}, RuntimeError, "fixed_linear"), ("fixed_root", {"total_curriculum_step": 9, "difficulty_step": 8}, AssertionError, "root_degree"),
    ("fixed_discrete", {"difficulty": [1, 2], "max_step": [1, 2]}, AssertionError, "for each difficulty but the last")])
def test_what_is_missing_is_named(kind, options, error, message):
    with pytest.raises(error, match=message):
        curriculum(kind, **options)
