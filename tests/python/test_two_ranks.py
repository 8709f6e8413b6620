"""deepspeed.comm, groups, partitions and pipelines on two real ranks; two_ranks.py is the program."""

import math
from pathlib import Path

import pytest
import ranks


@pytest.fixture(scope="module")
def found():
    return ranks.run_for_json(Path(__file__).with_name("two_ranks.py"), timeout=120)


def test_the_world(found):
    assert found["world"][:2] == [2, 0]


def test_collectives(found):
    assert found["collectives"] == [
        [3, 3, 3],             # 1 + 2
        [0, 0, 1, 1],
        [0, 2],                # rank 0's half of twice 0 1 2 3
        [0, 10],               # rank 0's part of 0 1 and of 10 11
        [[0, 1], [0, 0, 1, 1]],
        [1],
    ]


def test_the_log_counts_them_by_bytes(found):
    assert found["logged"]["all_reduce"] == [[12, 1]]
    assert found["logged"]["all_gather_into_tensor"] == [[8, 1]]
    assert found["logged"]["all_gather_coalesced"] == [[12, 1]]


def test_groups(found):
    assert found["groups"] == [2, [0, 1], 1, 1]


def test_partitioned_tensors(found):
    assert found["partitioned"] == [[8], True]  # 15 elements: 8 and 7


def test_the_norm_is_the_mean_over_the_ranks(found):
    assert found["norm"] == pytest.approx((math.sqrt(1 + 1) + math.sqrt(1 + 4)) / 2)


def test_an_expert_that_overflows_elsewhere_stops_this_rank(found):
    assert found["overflow"] == [False, True]


def test_inputs_kept_in_parts(found):
    assert found["kept in parts"]


def test_grid(found):
    assert found["grid"] == [[0, 1], [0], True, 1, [[0, 1], [1, 0]]]


def test_a_pipeline_with_tied_layers(found):
    parts, names, same_weights, same_gradients = found["pipeline"]
    assert parts == [0, 3, 4]  # 20, 0, 20, 20 trainable elements: all cuts differ by 20, and the last one is taken
    assert names == ["tied_modules.tied.weight", "tied_modules.tied.bias", "2.weight", "2.bias"]
    assert same_weights and same_gradients
