"""The fp32 weights of a checkpoint, without an engine: of those that this package saves and of DeepSpeed's own."""

import argparse
import sys

import torch

from deepspeed import _names
from tessera import full_weights
from tessera.deepspeed_files import files_like as get_checkpoint_files
from tessera.deepspeed_files import in_order_of_numbers as natural_keys  # noqa: F401
from tessera.deepspeed_files import model_state_file as get_model_state_file  # noqa: F401
from tessera.error_report import run_program

_names.serve(__name__)


def get_optim_files(checkpoint_dir):
    """One file a rank, in the ranks' order."""
    return get_checkpoint_files(checkpoint_dir, "*_optim_states.pt")


def get_model_state_files(checkpoint_dir):
    return get_checkpoint_files(checkpoint_dir, "*_model_states.pt")


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag=None, exclude_frozen_parameters=False, lazy_mode=False):
    return full_weights.state_dict_of(checkpoint_dir, tag, exclude_frozen_parameters)


def load_state_dict_from_zero_checkpoint(model, checkpoint_dir, tag=None):
    """The model, on the CPU, with these weights."""
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir, output_dir, max_shard_size="5GB", safe_serialization=False,
                                               tag=None, exclude_frozen_parameters=False):
    full_weights.convert(checkpoint_dir, output_dir, tag, torch.float32, max_shard_size, safe_serialization,
                         exclude_frozen_parameters)


def convert_zero_checkpoint_to_state_dict(checkpoint_dir, output_dir, dtype=torch.float32, max_shard_size="5GB",
                                          safe_serialization=False, tag=None, exclude_frozen_parameters=False):
    full_weights.convert(checkpoint_dir, output_dir, tag, dtype, max_shard_size, safe_serialization,
                         exclude_frozen_parameters)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="zero_to_fp32.py", description="Write a checkpoint's fp32 weights")
    parser.add_argument("checkpoint_dir", help="Folder of checkpoints")
    parser.add_argument("output_dir", help="Folder to write pytorch_model.bin or model.safetensors to")
    parser.add_argument("--max_shard_size", default="5GB", help="Largest size of one file, e.g. 5GB")
    parser.add_argument("--safe_serialization", action="store_true", help="Write safetensors files")
    parser.add_argument("-t", "--tag", default=None, help="which checkpoint (default: the one that `latest` names)")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    parser.add_argument("-d", "--debug", action="store_true", help="accepted; has no effect")
    options = parser.parse_args(arguments)
    return run_program(lambda: convert_zero_checkpoint_to_fp32_state_dict(
        options.checkpoint_dir, options.output_dir, options.max_shard_size, options.safe_serialization, options.tag,
        options.exclude_frozen_parameters))


if __name__ == "__main__":
    sys.exit(main())
