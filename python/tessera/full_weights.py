"""The fp32 weights of a checkpoint as a state dict or as files, without an engine: Tessera's checkpoints and DeepSpeed's."""

from math import prod
from pathlib import Path

import torch

from tessera import _core
from tessera.import_deepspeed import Source, failure, read
from tessera.kept_values import buffers_of


def state_dict_of(folder, tag=None, exclude_frozen_parameters=False):
    """Name -> fp32 tensor, tied weights the same tensor under each name; buffers as they were saved. `folder` holds
    checkpoints, or is one."""
    folder = Path(folder)
    path = folder / (tag or _core.read_latest(folder))
    if not path.is_dir():
        raise failure("no such checkpoint", path, "name a folder of checkpoints and one of its tags")
    if not (path / "manifest.json").is_file():
        return _of_deepspeed(path)
    checkpoint = _core.CheckpointReader(path)
    state = {name: checkpoint.tensor(name, "weight").float()
             for name in checkpoint.names_as_written(trained=exclude_frozen_parameters)}
    state.update({alias: state[name] for alias, name in checkpoint.aliases.items() if name in state})
    state.update(buffers_of(checkpoint.client_state, checkpoint.shared_tensors()))
    return state


def _of_deepspeed(path):
    source = Source(path)
    parameters, aliases, _ = read(source)
    state = {}
    for parameter in parameters:
        flat = parameter.kinds["weight"][1]() if prod(parameter.shape) else torch.empty(0)
        state[parameter.name] = flat.float().view(parameter.shape)
    state.update({alias: state[name] for alias, name in aliases.items()})
    state.update(source.buffers())
    return state


def convert(folder, output, tag=None, dtype=torch.float32, max_shard_size="5GB", safe_serialization=False,
            exclude_frozen_parameters=False):
    """Writes the weights into the folder `output`, in files of at most max_shard_size (None: one file) with an index.
    Tied weights are written once, and safetensors files name them once."""
    once, aliases = _each_once(state_dict_of(folder, tag, exclude_frozen_parameters))
    once = {name: value.to(dtype) if value.is_floating_point() else value for name, value in once.items()}
    Path(output).mkdir(parents=True, exist_ok=True)
    _core.write_weight_files(output, list(once.items()), aliases, safe_serialization,
                             "" if max_shard_size is None else str(max_shard_size))


def _each_once(state):
    """The tensors under their first names, and {further name of a tied one: its first}."""
    first, aliases = {}, {}
    for name, value in state.items():
        known = first.setdefault((value.data_ptr(), value.shape), name)
        if known != name and value.numel():
            aliases[name] = known
    return {name: value for name, value in state.items() if name not in aliases}, aliases


def write_weights(state, path, safe_serialization):
    """Safetensors files hold tensors alone, and tied weights once."""
    if safe_serialization:
        from safetensors.torch import save_file

        tensors = {name: value.contiguous() for name, value in state.items() if isinstance(value, torch.Tensor)}
        save_file(_each_once(tensors)[0], str(path), metadata={"format": "pt"})
    else:
        torch.save(state, path)
