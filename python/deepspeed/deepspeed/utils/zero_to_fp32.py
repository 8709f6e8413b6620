"""The fp32 weights of a checkpoint, without an engine: of those that this package saves and of DeepSpeed's own."""

import argparse
import glob
import os
import re
import sys

import torch

from deepspeed._not_yet import attribute_guard
from tessera import full_weights
from tessera.checkpoint_files import run_program

__getattr__ = attribute_guard(__name__)


def _in_order(paths):
    return sorted(paths, key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)])


def get_checkpoint_files(checkpoint_dir, glob_pattern):
    found = _in_order(glob.glob(os.path.join(checkpoint_dir, glob_pattern)))
    if not found:
        raise FileNotFoundError(f"can't find {glob_pattern} files in directory '{checkpoint_dir}'")
    return found


def get_optim_files(checkpoint_dir):
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
    parser = argparse.ArgumentParser(prog="zero_to_fp32.py", description="Write the fp32 weights of a checkpoint.")
    parser.add_argument("checkpoint_dir", help="the folder that holds checkpoints")
    parser.add_argument("output_dir", help="where pytorch_model.bin or model.safetensors go")
    parser.add_argument("--max_shard_size", default="5GB", help="of one file, e.g. 5GB")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors files")
    parser.add_argument("-t", "--tag", default=None, help="which checkpoint; otherwise the one that `latest` names")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    parser.add_argument("-d", "--debug", action="store_true", help="accepted, without effect")
    options = parser.parse_args(arguments)
    return run_program(lambda: convert_zero_checkpoint_to_fp32_state_dict(
        options.checkpoint_dir, options.output_dir, options.max_shard_size, options.safe_serialization, options.tag,
        options.exclude_frozen_parameters))


if __name__ == "__main__":
    sys.exit(main())
