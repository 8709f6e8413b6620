"""Ranks that share sequences, from Python: sequence_runs.py is the program, on four ranks."""

from pathlib import Path

import pytest
from ranks import run_for_json


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("sequence_runs.py"), count=4, timeout=300)


def trains_alike(result, seen):
    for found, expected in zip(result["found"], result["expected"], strict=True):
        assert len(found) == 20
        assert found == pytest.approx(expected, rel=1e-5)
    assert result["expected"][0][-1] < 0.99 * result["expected"][0][0]
    assert result["seen"] == seen  # of this rank's own tokens


@pytest.mark.parametrize("case, size", [("2 ranks, stage 0", 2), ("2 ranks, stage 3", 2), ("4 ranks, stage 2", 4)])
def test_a_model_of_transformers_trains_as_with_whole_sequences(runs, case, size):
    result = runs["transformers_models"][case]
    trains_alike(result, seen=20 * 4 * 12 // 4)
    assert result["shared"] and result["sizes"] == [4 // size, 4, 4, size]


def test_attention_of_a_program_s_own_does(runs):
    trains_alike(runs["attention_of_ones_own"], seen=20 * 4 * 12 // 4)


def test_and_turns_queries_and_keys_as_transformers_does(runs):
    trains_alike(runs["attention_that_turns"], seen=20 * 4 * 12 // 4)
    assert runs["attention_that_turns"]["expected"] != runs["attention_of_ones_own"]["expected"]


def test_a_loader_s_batches_are_shared_in_turn(runs):
    run = runs["adapter_of_loaders"]
    assert run["length"] == 4 and run["again"] == "0.0"
    for rank, batches in enumerate(run["found"]):
        first, part = rank // 2 * 2, rank % 2
        assert [batch["name"] for batch in batches] == [f"{of}.{step}" for step in range(2) for of in (first, first + 1)]
        for batch, (step, of) in zip(batches, [(step, of) for step in range(2) for of in (first, first + 1)]):
            own = slice(3 * part, 3 * part + 3)
            assert batch["input_ids"] == [[10 * of + 100 * step + token for token in range(6)][own]]
            assert batch["position_ids"] == [list(range(6))[own]]
            assert batch["shift_labels"] == [[*(10 * of + token for token in range(1, 6)), -100][own]]
            assert "labels" not in batch
    assert run["without"][0] == "ValueError" and "position_ids" in run["without"][1]


@pytest.mark.parametrize("case, kind, words", [
    ("eager", "ValueError", "does not match model config"), ("ranks", "RuntimeError", "not divisible by sequence_parallel_size 3"),
    ("heads", "ConfigError", "6 attention heads of 3 key heads cannot be cut over 4 ranks"),
    ("does not factor", "UsageError", "has 6 places, and the number of ranks is 4"),
    ("mesh_param", "UsageError", "has 6 places, and the number of ranks is 4")])
def test_what_does_not_go_round_is_refused_by_name(runs, case, kind, words):
    found = runs["misuse"]
    assert found[case][0] == kind and words in found[case][1], found[case]
    assert "TiledLoss is not in Tessera yet" in found["not there"][1]
    assert found["one"] is None and found["by the configuration"] == [2, 2, 2]
