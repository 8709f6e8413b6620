"""Checkpoints that DeepSpeed itself wrote, for Engine.load_checkpoint.

They are read by import_deepspeed: rank 0 writes the same as a Tessera checkpoint, which every rank loads as any other, and
which is gone once that is done. It lies in a folder beside DeepSpeed's files, because they are where all ranks can read and
where there is room for such amounts; in the temporary folder if nothing can be written there and all ranks are on one host.
"""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from tessera import _core
from tessera.import_deepspeed import Source, failure, is_deepspeeds, optimizer_groups, own_schedule, write
from tessera.kept_values import as_client_state

# What DeepSpeed writes beside the program's client state.
OWN_KEYS = {"module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
            "frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd", "skipped_steps", "global_steps",
            "global_samples", "dp_world_size", "mp_world_size", "ds_config", "ds_version", "checkpoint_parallel_dimensions",
            "universal_checkpoint_info", "sparse_tensor_module_names", "csr_tensor_module_names"}


@contextlib.contextmanager
def readable(load_dir, tag, world, layers=None):
    """(folder, tag, path) for the engine's load; path: the tag's folder where it is DeepSpeed's, otherwise None. `layers`: as
    Source has it. Collective."""
    made, said = None, {}
    if world.rank == 0:
        try:
            stock = _stock_folder(Path(load_dir), tag)
            if stock is not None:
                made = _new_folder(stock.parent, world)
                _import(stock, made, layers)
                said = {"folder": made, "path": str(stock)}
        except Exception as error:  # of any kind: the other ranks wait
            if not isinstance(error, _core.Error):
                error = failure(f"DeepSpeed's checkpoint cannot be read: {type(error).__name__}: {error}", load_dir,
                                "check free space and permissions there, or use an earlier checkpoint")
            said = {"failure": str(error)}
    try:
        said = json.loads(world.exchange_texts(json.dumps(said), "import of DeepSpeed's checkpoint")[0])
        if "failure" in said:
            raise _core.DataError(said["failure"])
        if "folder" in said:
            yield said["folder"], "", said["path"]
        else:
            yield str(load_dir), "" if tag is None else str(tag), None
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _stock_folder(folder, tag):
    tag = _core.read_latest(folder) if tag is None else str(tag)
    if not tag:
        return None
    return folder / tag if is_deepspeeds(folder / tag) else None


def _new_folder(beside, world):
    try:
        return tempfile.mkdtemp(prefix=".importing-", dir=beside)
    except OSError as error:
        if int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "1"))) < world.size:
            raise failure(f"DeepSpeed's checkpoint has to be imported next to its files, which failed: {error.strerror}", beside,
                          "make the folder writable, or copy the checkpoint to a folder that is") from None
    return tempfile.mkdtemp(prefix="tessera-importing-")


def _import(stock, folder, layers):
    source = Source(stock, layers)
    kept = {"client": {key: value for key, value in source.model.items() if key not in OWN_KEYS},
            "buffers": {name: value.clone() for name, value in source.buffers().items()},
            "groups": optimizer_groups(source)}
    if source.model.get("lr_scheduler") is not None and own_schedule(source) is None:
        kept["lr_scheduler"] = source.model["lr_scheduler"]
    if source.model.get("data_sampler") is not None:
        kept["data_sampler"] = source.model["data_sampler"]
    write(source, folder, *as_client_state(kept))
