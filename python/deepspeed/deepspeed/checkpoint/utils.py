"""Names of checkpoint files, and copies of tensors that save no more than themselves."""

import os

import torch

from deepspeed.checkpoint.constants import MODEL_FILE_PREFIX, MODEL_FILE_SUFFIX, OPTIM_FILE_SUFFIX, ZERO_FILE_PREFIX
from tessera.nested_tensors import map_tensors


def get_model_ckpt_name_for_rank(base_folder, mp_rank_str):
    return os.path.join(base_folder, f"{MODEL_FILE_PREFIX}{mp_rank_str}{MODEL_FILE_SUFFIX}")


def get_zero_ckpt_name_for_rank(base_folder, dp_rank, mp_rank):
    return os.path.join(base_folder, f"{ZERO_FILE_PREFIX}{dp_rank}_{MODEL_FILE_PREFIX}{mp_rank:02d}{OPTIM_FILE_SUFFIX}")


def get_layer_ckpt_name_for_rank(base_folder, layer_id, tp_rank):
    return os.path.join(base_folder, f"layer_{layer_id}-model_{tp_rank:02d}{MODEL_FILE_SUFFIX}")


def clone_tensors_for_torch_save(item, device=torch.device("cpu")):
    """The structure with a copy of each tensor on `device`. torch.save writes a tensor's whole storage, and that of a
    parameter is the engine's buffer of many parameters; the copies have storages of their own. Tensors that were the same
    (tied weights) stay the same."""
    copies = {}

    def copy(tensor):
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else id(tensor)
        if key not in copies:
            copies[key] = tensor.detach().clone().to(device)
        return copies[key]

    return map_tensors(item, copy)
