"""Where the layers of a pipeline lie, when its stages work, and where its ranks stand."""

import pytest
from deepspeed.runtime.pipe.schedule import (
    BackwardPass,
    ForwardPass,
    InferenceSchedule,
    LoadMicroBatch,
    OptimizerStep,
    RecvActivation,
    RecvGrad,
    SendActivation,
    SendGrad,
    TrainSchedule,
)
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology, ProcessTopology, _prime_factors
from tessera._core import balanced_bounds, uniform_bounds


@pytest.mark.parametrize("items, parts, bounds", [
    (10, 4, [0, 3, 6, 8, 10]), (7, 3, [0, 3, 5, 7]), (2, 4, [0, 1, 2, 2, 2])])
def test_uniform_parts(items, parts, bounds):
    assert uniform_bounds(items, parts) == bounds


# Bounds that DeepSpeed 0.19.8 finds: a checkpoint's layer files lie where these say.
@pytest.mark.parametrize("weights, bounds", [
    ([12, 13, 1, 8, 16, 15, 12, 9, 15, 11, 18, 6, 16, 4], [0, 4, 6, 9, 11, 14]),
    ([3, 2, 10, 15, 17], [0, 4, 5]),
    ([1, 1, 1, 1, 0, 1], [0, 2, 3, 5, 6]),
    ([15, 10, 7, 10, 2, 6, 18, 7, 7, 4], [0, 1, 2, 3, 4, 6, 7, 8, 10]),
    ([1, 2, 1], [0, 1, 2, 3, 3]),
])
def test_balanced_parts(weights, bounds):
    assert balanced_bounds(weights, len(bounds) - 1) == bounds


def test_equal_weights_balance_to_within_one():
    for count in range(1, 20):
        for parts in range(1, 6):
            bounds = balanced_bounds([1] * count, parts)
            sizes = [end - begin for begin, end in zip(bounds, bounds[1:])]
            assert sum(sizes) == count and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 8])
def test_a_pipeline_can_run_its_schedule(stages, micro_batches):
    """Runs all stages step by step: what is received has been sent, backward follows forward, and no buffer is
    overwritten while it is in use."""
    schedules = [list(TrainSchedule(micro_batches, stages, stage)) for stage in range(stages)]
    buffers = [TrainSchedule(micro_batches, stages, stage).num_pipe_buffers() for stage in range(stages)]
    activations, gradients = [[] for _ in range(stages)], [[] for _ in range(stages)]
    in_use, done = [set() for _ in range(stages)], [[0, 0] for _ in range(stages)]
    assert len({len(steps) for steps in schedules}) == 1
    for step in range(len(schedules[0])):
        for wanted in (SendActivation, SendGrad):  # neighbours exchange within one step
            for stage in range(stages):
                for instruction in schedules[stage][step]:
                    if type(instruction) is wanted:
                        target = activations[stage + 1] if wanted is SendActivation else gradients[stage - 1]
                        target.append(instruction)
        for stage in range(stages):
            for instruction in schedules[stage][step]:
                if isinstance(instruction, RecvActivation):
                    activations[stage].pop(0)
                elif isinstance(instruction, RecvGrad):
                    gradients[stage].pop(0)
                elif isinstance(instruction, ForwardPass):
                    assert instruction.buffer_id not in in_use[stage] and instruction.buffer_id < buffers[stage]
                    in_use[stage].add(instruction.buffer_id)
                    done[stage][0] += 1
                elif isinstance(instruction, BackwardPass):
                    in_use[stage].remove(instruction.buffer_id)
                    done[stage][1] += 1
    assert done == [[micro_batches, micro_batches]] * stages
    assert not any(in_use) and not any(activations) and not any(gradients)
    assert all(isinstance(steps[-1][-1], OptimizerStep) for steps in schedules)


def test_inference_loads_at_both_ends():
    first, last = (list(InferenceSchedule(3, 2, stage)) for stage in (0, 1))
    assert sum(isinstance(i, LoadMicroBatch) for step in first for i in step) == 3
    assert sum(isinstance(i, LoadMicroBatch) for step in last for i in step) == 3
    assert repr(first[0]) == "[LoadMicroBatch(buffer_id=0), ForwardPass(buffer_id=0)]"


def test_ranks_count_along_the_last_axis_first():
    grid = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=3)
    assert grid.world_size() == 12 and grid.get_axis_names() == ["pipe", "data", "model"]
    for rank in range(12):
        place = grid.get_coord(rank)
        assert rank == (place.pipe * 3 + place.data) * 2 + place.model == grid.get_rank(**place._asdict())
    assert grid.get_axis_comm_lists("model") == [[rank, rank + 1] for rank in range(0, 12, 2)]
    assert grid.get_axis_comm_lists("data")[0] == [0, 2, 4]
    assert grid.get_axis_comm_lists("pipe")[1] == [1, 7]
    assert grid.filter_match(data=1, model=0) == [2, 8]
    assert grid.get_rank_repr(7) == "model_01" and grid.get_rank_repr(7, omit_axes=[]) == "pipe_01-data_00-model_01"
    assert grid.get_axis_comm_lists("sequence") == [] and grid.get_dim("sequence") == 0


def test_places_that_are_not_there():
    grid = ProcessTopology(axes=["pipe", "data"], dims=[2, 2])
    with pytest.raises(ValueError, match="filter_match"):
        grid.get_rank(pipe=0)
    with pytest.raises(AssertionError, match="outside"):
        grid.get_rank(pipe=2, data=0)
    with pytest.raises(ValueError, match="rank 4"):
        grid.get_coord(4)


def test_prime_factors():
    assert [_prime_factors(number) for number in (1, 2, 12, 97)] == [[], [2], [2, 2, 3], [97]]
    with pytest.raises(ValueError):
        _prime_factors(0)
