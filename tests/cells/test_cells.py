"""A sample of `make cells`."""

import pytest
from cells import MODELS, Cell, References, cells_of, chains_of, check, check_refused, check_reshaping, factorisations, write_run


@pytest.mark.sample("llama-2, 1, 1, 2", "t5-1, 2, 2, 1")
@pytest.mark.parametrize(("model", "cell"), [
    ("llama", Cell(2, 1, 1, 2)), ("llama", Cell(1, 2, 2, 2)), ("gpt2", Cell(2, 2, 1, 1)), ("bert", Cell(3, 2, 1, 1)), ("t5", Cell(1, 2, 2, 1)),
], ids=lambda value: value if isinstance(value, str) else f"{value.dp}, {value.tp}, {value.pp}, {value.cp}")
def test_a_cell_trains_as_one_process(tmp_path, model, cell):
    assert 0 <= check(References(write_run(tmp_path, model)), cell, stages=(1, 3) if cell.pp == 1 else (2, 3))


def test_a_run_goes_on_over_other_cells(tmp_path):
    check_reshaping(References(write_run(tmp_path, "llama")), [Cell(1, 2, 2, 1), Cell(2, 1, 1, 2), Cell(4, 1, 1, 1), Cell(1, 1, 4, 1)], 8)


def test_key_heads_that_do_not_go_round_are_refused(tmp_path):
    check_refused(References(write_run(tmp_path, "llama")), Cell(1, 3, 1, 1))


def test_all_cells_are_there():
    """Ordered factorisations of 8 into 4 factors are 6 choose 3; into 3, where no sequence is shared, 5 choose 2."""
    assert len(cells_of("llama", 8)) == len(factorisations("llama", 8)) == 20 and len(cells_of("bert", 8)) == 10
    assert {cell.ranks for model in MODELS for cell in factorisations(model, 6)} == {6}
    cells = [cell for ranks in range(1, 9) for cell in cells_of("gpt2", ranks)]
    assert all(cell.batch % cell.dp == 0 for cell in cells)
    chains = list(chains_of(cells))
    assert set(cells) == {cell for _, chain in chains for cell in chain}
    assert all(batch % cell.dp == 0 for batch, chain in chains for cell in chain)
