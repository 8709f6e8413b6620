"""A part of `make long`."""

import pytest
from long_sequence import RANKS, STEPS, refused, trained_by_one, trained_by_ranks, write_run

SECONDS = 120  # of each run; the longest takes about ten


def test_ranks_train_on_a_sequence_that_one_has_no_memory_for(tmp_path):
    tokens = 8192
    run_file = write_run(tmp_path, tokens)
    code, said = refused(run_file, tokens, SECONDS)
    assert code == 2 and "error: cannot allocate another" in said and "fix:" in said, said
    ranks, one = trained_by_ranks(run_file, tokens, SECONDS), trained_by_one(run_file, SECONDS)
    assert "context ring" in ranks.said
    assert len(one.losses) == STEPS and one.tokens == ranks.tokens == STEPS * tokens
    assert ranks.losses == pytest.approx(one.losses, rel=1e-5)
    assert one.losses[-1] < 0.95 * one.losses[0]
    assert len(ranks.peaks) == RANKS and max(ranks.peaks) < 0.8 * max(one.peaks)
