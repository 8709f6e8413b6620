"""The files of a checkpoint that DeepSpeed wrote, in the order of their ranks."""

import re
from pathlib import Path


def in_order_of_numbers(name):
    """Sorts rank_2 before rank_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(name))]


def files_like(folder, pattern):
    found = sorted((str(path) for path in Path(folder).glob(pattern)), key=in_order_of_numbers)
    if not found:
        raise FileNotFoundError(f"no file in {folder} matches {pattern}; {_way_out(folder)}")
    return found


def model_state_file(folder, stage):
    """The model states that the first rank wrote."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"folder {folder} not found")
    name = "zero_pp_rank_0_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"
    path = Path(folder) / name
    if not path.exists():
        own = f"; {_way_out(folder)}" if _is_tesseras(folder) else ""
        raise FileNotFoundError(f"{path} is missing: a stage {stage} checkpoint has it{own}")
    return str(path)


def _is_tesseras(folder):
    return (Path(folder) / "manifest.json").is_file()


def _way_out(folder):
    if _is_tesseras(folder):
        return ('these are Tessera\'s own files: save with "checkpoint": {"format": "deepspeed"} in the configuration, which writes DeepSpeed\'s '
                "beside them, or convert the folder by python -m tessera.export_deepspeed")
    return "name one tag's folder, such as global_step10"
