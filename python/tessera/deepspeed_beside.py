"""checkpoint.format "deepspeed": beside what Tessera writes, each checkpoint has the files that DeepSpeed would have written,
for programs that read these: a model's file, and each rank's part of the optimizer's weights and states. Tessera itself loads
its own; what becomes of its checkpoints does not change.

The files are of as many ranks as write them, at the engine's ZeRO stage; of stage 1 where that is 0. A rank reads what it
writes from the checkpoint that has just been made, and holds no more than that: its own part; rank 0 also the whole weights,
but at stage 3.
"""

import logging
from pathlib import Path

import torch

from tessera import _core, zero
from tessera.deepspeed_writer import (Training, model_name, model_states, optimizer_name, part_of_model, save, save_optimizer,
                                      whole_model)
from tessera.error_report import made
from tessera.loss_scale import SETTINGS, StaticScale, dynamic_scale_as_kept
from tessera.param_groups import options_of

logger = logging.getLogger("tessera")

KEY = "checkpoint.format"
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def asked_for(config, mesh, torch_step):
    """The DeepSpeedFiles of an engine of this configuration; None where it asks for none. ConfigError where there can be none."""
    values = config.values
    if values.get(KEY) != "deepspeed":
        return None
    others = {"checkpoint.async_save": "what is written in the background is not there yet when save_checkpoint returns",
              "checkpoint.use_node_local_storage": "a rank's part may lie in another host's files"}
    for key, why in others.items():
        if values.get(key) is True:
            raise made(_core.ConfigError, f"'{KEY}' is \"deepspeed\" beside '{key}': {why}", KEY, "leave one of them out")
    if mesh.holds_parts:
        axes = " × ".join(f"{axis} {size}" for axis, size in mesh.axes)
        raise made(_core.ConfigError, f"'{KEY}' is \"deepspeed\", but the ranks hold different parts of the model ({axes}): these "
                   "files are of data-parallel ranks alone", KEY,
                   "leave it out; python -m tessera.export_deepspeed writes a checkpoint of any mesh as DeepSpeed's")
    if torch_step is not None and mesh.world.rank == 0:
        logger.warning("DeepSpeed's files of a checkpoint will be without the states of %s: Tessera does not know them by name",
                       type(torch_step.optimizer).__name__)
    return DeepSpeedFiles(config, mesh.world)


class DeepSpeedFiles:
    def __init__(self, config, world):
        self._world = world
        self._values = config.values
        self._dtype = _DTYPES[config.compute_dtype]
        self._scales_dynamically = config.scales_dynamically

    def write(self, engine, path, client_state):
        """Into the checkpoint at `path`. Collective."""
        failure = ""
        try:
            self._write_own(engine, Path(path), client_state)
        except Exception as error:  # of any kind: the other ranks wait
            failure = str(error) or type(error).__name__
        for rank, text in enumerate(self._world.exchange_texts(failure, "DeepSpeed's files of the checkpoint")):
            if text:
                raise made(_core.MachineError, f"DeepSpeed's files could not be written (rank {rank}): {text}", path,
                           f"Tessera's own files there are whole; mend what is said, or leave '{KEY}' out")

    def _write_own(self, engine, path, client_state):
        rank, training = self._world.rank, self._training_of(engine, _core.CheckpointReader(path))
        if training.groups:
            save_optimizer(training, rank, path / optimizer_name(training, rank))
        if training.stage < 3 and rank != 0:
            return
        model = part_of_model(training, rank) if training.stage == 3 else whole_model(training)
        buffers = engine.buffers_to_save()
        model["module"].update(buffers)
        state = {**model_states(training), **model, "buffer_names": [*buffers]}
        if hasattr(engine.lr_scheduler, "state_dict"):
            state["lr_scheduler"] = engine.lr_scheduler.state_dict()
        state["data_sampler"] = engine.data_state()
        save({**state, **client_state}, path / model_name(training, rank))

    def _training_of(self, engine, checkpoint):
        groups = engine.basic_optimizer.param_groups if engine.basic_optimizer is not None else []
        return Training(
            checkpoint, [[engine.name_of(each) for each in group["params"] if zero.trained_by(each)[0] is engine] for group in groups],
            self._dtype, stage=max(engine.stage, 1), ranks=self._world.size,
            options=[*map(options_of, groups)],
            steps_as=torch.float32 if type(engine.basic_optimizer).__module__.startswith("torch.") else None,
            scaler=self._scaler_of(checkpoint), clip=self._values["gradient_clipping"],
            sub_group_size=self._values["zero_optimization.sub_group_size"])

    def _scaler_of(self, checkpoint):
        kept = checkpoint.engine_state["loss_scaler"]
        if self._scales_dynamically:
            return dynamic_scale_as_kept(kept, {key: self._values[f"fp16.{key}"] for key in SETTINGS})
        return StaticScale(kept["scale"])
