"""The fp32 weights of a checkpoint as a state dict or as files, without an engine: Tessera's checkpoints and DeepSpeed's."""

import json
import re
from pathlib import Path

import torch

from tessera.checkpoint_files import Failure, TesseraCheckpoint, numel, read_latest
from tessera.client_state import decode

WEIGHTS_NAMES = {False: "pytorch_model.bin", True: "model.safetensors"}


def state_dict_of(folder, tag=None, exclude_frozen_parameters=False):
    """Name -> fp32 tensor, tied weights the same tensor under each name; buffers as they were saved. `folder` holds
    checkpoints, or is one."""
    folder = Path(folder)
    path = folder / (tag or read_latest(folder) or "")
    if not path.is_dir():
        raise Failure("no such checkpoint", path, "name a folder of checkpoints and one of its tags")
    if not (path / "manifest.json").is_file():
        return _of_deepspeed(path)
    checkpoint = TesseraCheckpoint(path)
    stored = checkpoint.manifest["tensors"]
    state = {name: checkpoint.tensor(name, "weight").float() for name in stored
             if not exclude_frozen_parameters or _is_trained(stored[name], stored)}
    state.update({alias: state[name] for alias, name in checkpoint.manifest["aliases"].items() if name in state})
    python = checkpoint.manifest.get("client_state", {}).get("python")
    if python:
        state.update(decode(python).get("buffers", {}))
    return state


def _is_trained(tensor, all_tensors):
    keeps_states = any(len(each["kinds"]) > 1 for each in all_tensors.values())
    return len(tensor["kinds"]) > 1 or not keeps_states


def _of_deepspeed(path):
    from tessera import import_deepspeed

    source = import_deepspeed.Source(path)
    parameters, aliases, _ = import_deepspeed.read(source)
    state = {}
    for parameter in parameters:
        flat = parameter.kinds["weight"][1]() if numel(parameter.shape) else torch.empty(0)
        state[parameter.name] = flat.float().view(parameter.shape)
    state.update({alias: state[name] for alias, name in aliases.items()})
    for name in source.model.get("buffer_names") or []:
        state[name] = source.model["module"][name]
    return state


def convert(folder, output, tag=None, dtype=torch.float32, max_shard_size="5GB", safe_serialization=False,
            exclude_frozen_parameters=False):
    """Writes the weights into the folder `output`, in files of at most max_shard_size (None: one file) with an index.
    Tied weights are written once in safetensors files."""
    state = state_dict_of(folder, tag, exclude_frozen_parameters)
    state = {name: value.to(dtype) if value.is_floating_point() else value for name, value in state.items()}
    if safe_serialization:
        state = _each_once(state)
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    name = WEIGHTS_NAMES[safe_serialization]
    parts = _parts(state, _bytes(max_shard_size))
    if len(parts) == 1:
        write_weights(parts[0], output / name, safe_serialization)
        return
    stem, suffix = name.rsplit(".", 1)
    places = {}
    for number, part in enumerate(parts, 1):
        file = f"{stem}-{number:05d}-of-{len(parts):05d}.{suffix}"
        write_weights(part, output / file, safe_serialization)
        places.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": sum(map(_size, state.values()))}, "weight_map": places}
    (output / f"{name}.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _each_once(state):
    """Without the further names of tied weights."""
    first = {}
    for name, value in state.items():
        first.setdefault((value.data_ptr(), value.shape), name)
    names = set(first.values())
    return {name: value for name, value in state.items() if name in names}


def _size(tensor):
    return tensor.numel() * tensor.element_size()


def _bytes(text):
    """"5GB" as transformers counts, in powers of 1000."""
    if text is None or isinstance(text, int):
        return text
    match = re.fullmatch(r"(\d+)([KMG]?B)", str(text).upper())
    if match is None:
        raise ValueError(f"'{text}' is not a size: use one such as 5GB or 200MB")
    return int(match[1]) * {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}[match[2]]


def _parts(state, most):
    parts, size = [{}], 0
    for name, value in state.items():
        if most is not None and parts[-1] and size + _size(value) > most:
            parts.append({})
            size = 0
        parts[-1][name] = value
        size += _size(value)
    return parts


def write_weights(state, path, safe_serialization):
    """Safetensors files hold tensors alone, and tied weights once."""
    if safe_serialization:
        from safetensors.torch import save_file

        tensors = {name: value.contiguous() for name, value in state.items() if isinstance(value, torch.Tensor)}
        save_file(_each_once(tensors), str(path), metadata={"format": "pt"})
    else:
        torch.save(state, path)
