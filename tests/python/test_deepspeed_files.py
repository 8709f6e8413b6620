"""Finding the files of a checkpoint that DeepSpeed wrote."""

from pathlib import Path

import pytest
from deepspeed.utils import zero_to_fp32


def test_files_come_in_the_order_of_their_ranks(tmp_path):
    for rank in (10, 2, 0):
        (tmp_path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    (tmp_path / "mp_rank_00_model_states.pt").touch()
    ranks = [Path(name).name.split("_")[3] for name in zero_to_fp32.get_optim_files(tmp_path)]
    assert ranks == ["0", "2", "10"]
    assert len(zero_to_fp32.get_model_state_files(str(tmp_path))) == 1
    assert zero_to_fp32.get_model_state_file(tmp_path, 2).endswith("mp_rank_00_model_states.pt")
    assert Path(zero_to_fp32.__file__).exists()  # programs copy it beside their checkpoints


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="optim_states"):
        zero_to_fp32.get_optim_files(tmp_path)
    with pytest.raises(FileNotFoundError, match="a stage 3 checkpoint has it"):
        zero_to_fp32.get_model_state_file(tmp_path, 3)
    with pytest.raises(AttributeError, match="not in Tessera yet"):
        zero_to_fp32.parse_optim_states


def test_of_a_checkpoint_in_tesseras_own_files_the_way_to_deepspeeds_is_told(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    for of_a_file in (zero_to_fp32.get_optim_files, zero_to_fp32.get_model_state_files, lambda folder: zero_to_fp32.get_model_state_file(folder, 2)):
        with pytest.raises(FileNotFoundError, match='"checkpoint": {"format": "deepspeed"}.*tessera.export_deepspeed'):
            of_a_file(tmp_path)
