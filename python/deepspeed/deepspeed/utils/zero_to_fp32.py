"""The files of a checkpoint that DeepSpeed wrote. To read them use python -m tessera.import_deepspeed."""

from deepspeed._not_yet import attribute_guard
from tessera.deepspeed_files import files_like as get_checkpoint_files
from tessera.deepspeed_files import in_order_of_numbers as natural_keys  # noqa: F401
from tessera.deepspeed_files import model_state_file as get_model_state_file  # noqa: F401

__getattr__ = attribute_guard(__name__)


def get_optim_files(checkpoint_dir):
    """One file a rank, in the ranks' order."""
    return get_checkpoint_files(checkpoint_dir, "*_optim_states.pt")


def get_model_state_files(checkpoint_dir):
    return get_checkpoint_files(checkpoint_dir, "*_model_states.pt")
