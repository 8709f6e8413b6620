"""DeepSpeedEngine: tessera.Engine under DeepSpeed's names, with the getters that DeepSpeed has for each key."""

import functools
import logging
import math
import os
import stat
import weakref
from types import SimpleNamespace

import torch
from torch.utils.data import IterableDataset
from torch.utils.data.distributed import DistributedSampler

import tessera
from deepspeed import _not_yet
from deepspeed import comm as dist
from deepspeed.monitor.config import get_monitor_config
from deepspeed.monitor.monitor import MonitorMaster
from deepspeed.runtime._key_getters import KeyGetters
from deepspeed.runtime._step_times import StepTimes
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.constants import DATA_PARALLEL_GROUP, GLOBAL_RANK, GRADIENT_ACCUMULATION_STEPS
from deepspeed.runtime.data_pipeline.config import get_data_efficiency_config
from deepspeed.runtime.data_pipeline.constants import (
    CURRICULUM_LEARNING,
    DATA_EFFICIENCY,
    DATA_ROUTING,
    DATA_SAMPLING,
    DATA_SAMPLING_NUM_WORKERS,
    RANDOM_LTD,
)
from deepspeed.runtime.dataloader import DeepSpeedDataLoader, RepeatingLoader
from deepspeed.runtime.optimizer_classes import class_for
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum
from deepspeed.utils import groups, log_dist
from deepspeed.utils.logging import logger, set_log_level_from_string
from deepspeed.utils.timer import ThroughputTimer
from tessera import _core
from tessera.config_keys import defaults_in
from tessera.error_report import made
from tessera.optimizers import NativeOptimizer

_RECOVERY_SCRIPT = "zero_to_fp32.py"
_RECOVERY_TEXT = '''#!/usr/bin/env python
"""The fp32 weights of the checkpoints in this folder: python zero_to_fp32.py <this folder> <output folder>"""

import sys

from deepspeed.utils.zero_to_fp32 import main

if __name__ == "__main__":
    sys.exit(main())
'''


_NAMES_OF_TIMES = {"fwd": "forward", "bwd": "backward", "step": "step"}

# Of the pipeline engine.
_OF_PIPELINES = ("train_batch", "eval_batch", "set_batch_fn", "set_dataloader", "set_dataiterator", "reset_activation_shape",
                 "get_additional_losses")


def _zero_grad(engine, set_to_none=True):
    if engine() is not None and engine().is_alive:
        engine().zero_grad()


class DeepSpeedEngine(KeyGetters, tessera.Engine):
    observes = frozenset({"wall_clock_breakdown", "memory_breakdown", "flops_profiler", "comms_logger", "tensorboard", "csv_monitor", "wandb", "comet"})
    sparse_tensor_module_names = frozenset()  # gradients of sparse embeddings are reduced as dense ones
    mpu = None  # what says which ranks share the model: initialize's argument, a PipelineModule's, or with autotp_size deepspeed.utils.groups

    def __init__(self, model, config, raw_config, *arguments):
        if raw_config.get("log_level"):
            set_log_level_from_string(raw_config["log_level"])
        super().__init__(model, config, raw_config, *arguments)
        self.monitor = MonitorMaster(get_monitor_config(raw_config))
        if "comms_logger" in raw_config:
            dist.configure(**{key: self._value(f"comms_logger.{key}") for key in defaults_in("comms_logger")})

    def _wrapped(self, optimizer):
        cls = class_for(self.stage, *self.get_data_types(), fused=isinstance(optimizer, NativeOptimizer))
        if cls is None:  # the optimizer itself, whose parameters have no gradients: they are the engine's
            optimizer.zero_grad = functools.partial(_zero_grad, weakref.ref(self))
            return optimizer
        return cls(weakref.ref(self), optimizer)

    @property
    def tput_timer(self):
        if "_tput_timer" not in self.__dict__:
            options = {**defaults_in("timers.throughput"), **self.config.get("timers", {}).get("throughput", {})}
            self.__dict__["_tput_timer"] = ThroughputTimer(
                SimpleNamespace(**options), batch_size=self.train_batch_size(), steps_per_output=self.steps_per_print())
        return self.__dict__["_tput_timer"]

    @functools.cached_property
    def step_times(self):
        return StepTimes(self.wall_clock_breakdown(), self.memory_breakdown(), self.flops_profiler_enabled())

    @property
    def timers(self):
        return self.step_times.timers

    @functools.cached_property
    def flops_profiler(self):
        """None where the configuration has it off."""
        if not self.flops_profiler_enabled():
            return None
        from deepspeed.profiling.flops_profiler import FlopsProfiler  # with torch's counter, which few need

        return FlopsProfiler(self.module, self, self.flops_profiler_recompute_fwd_factor())

    def _is_profiled(self):
        """Of ranks that do alike one looks."""
        return self.flops_profiler_enabled() and self.global_rank == 0 and self.global_steps == self.flops_profiler_profile_step()

    def forward(self, *inputs, **kwargs):
        if self.training:
            self.tput_timer.start()
        profiler = self.flops_profiler if self._is_profiled() else None
        if profiler is not None:
            profiler.start_profile()
        try:
            with self.step_times.of("fwd"):
                return super().forward(*inputs, **kwargs)
        finally:
            if profiler is not None:
                profiler.stop_profile()

    def backward(self, *loss, **how):
        with self.step_times.of("bwd"):
            return super().backward(*loss, **how)

    def step(self, lr_kwargs=None):
        boundary = self.steps_now()
        profiled, number = boundary and self._is_profiled(), self.global_steps
        with self.step_times.of("step"):
            super().step(lr_kwargs)
        if boundary:
            dist.comms_logger.take_engines()
        self.step_times.end_micro_batch(boundary, says=self.global_rank == 0)
        if boundary and self.monitor.enabled and self.optimizer is not None:
            self.monitor.write_events(self._events_of_step())
        if profiled:
            self.flops_profiler.print_model_profile(number, self.flops_profiler_module_depth(), self.flops_profiler_top_modules(),
                                                    self.flops_profiler_detailed(), self.flops_profiler_output_file())
            self.flops_profiler.end_profile()
        self.tput_timer.stop(global_step=boundary, report_speed=boundary)
        every = self.steps_per_print()
        if boundary and every and self.optimizer is not None and self.global_steps % every == 0:
            log_dist(f"step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}, mom={self.get_mom()}",
                     ranks=[0])

    def _events_of_step(self):
        scale = [("Train/Samples/loss_scale", self.loss_scale())] if self.fp16_enabled() else []
        times = [(f"Train/Samples/elapsed_time_ms_{_NAMES_OF_TIMES[timer]}", spent)
                 for timer, spent in (self.step_times.last if self.wall_clock_breakdown() else {}).items()]
        return [(name, value, self.global_samples) for name, value in [("Train/Samples/lr", self.get_lr()[0]), *scale, *times]]

    def __getattr__(self, name):
        if name in _OF_PIPELINES:
            raise AttributeError(f"{name} belongs to the engine of a PipelineModule: call engine(batch), engine.backward(loss) "
                                 "and engine.step()")
        try:
            return super().__getattr__(name)
        except AttributeError:
            full_name = f"deepspeed.runtime.engine.DeepSpeedEngine.{name}"
            if _not_yet.is_missing(full_name):
                raise AttributeError(_not_yet.sentence(full_name)) from None
            raise

    def allreduce_gradients(self, bucket_size=None):
        """Reduces what has accumulated, where the next step is an optimizer step. A backward at such a boundary has reduced it, and at stages
        2 and 3 every backward its own; so this acts where the boundary was set after the last one. `bucket_size` has no effect: a unit is the bucket."""
        if self.is_gradient_accumulation_boundary() and not self._is_reduced:
            self.core.reduce_accumulated()
            self._is_reduced = True

    def _backward_epilogue(self):
        """Does nothing. Before 0.18.3 programs called it for every engine after the backward of a shared loss."""

    # ---- where it runs

    @property
    def world_size(self):
        return self._world.size

    @property
    def dp_world_size(self):
        return self._data.size

    @property
    def seq_dp_world_size(self):
        return self._mesh.data.size

    @property
    def mp_world_size(self):
        return self._mesh.parts

    @property
    def global_rank(self):
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def local_rank(self):
        return int(os.environ.get("LOCAL_RANK", "0"))

    def get_data_parallel_rank(self):
        return self._data.rank

    def get_tensor_parallel_rank(self):
        return self._mesh.coordinate("tp")

    get_model_parallel_rank = get_tensor_parallel_rank

    @property
    def data_parallel_group(self):
        return groups._get_data_parallel_group()

    @property
    def seq_data_parallel_group(self):
        return groups._get_sequence_data_parallel_group()

    def get_sequence_parallel_group(self):
        return groups._get_sequence_parallel_group()

    def get_global_grad_norm(self):
        """Of the last step, before clipping: a tensor without dimensions; infinity where the step was skipped; None before the first."""
        norm = super().get_global_grad_norm()
        return norm if norm is None else torch.tensor(norm, dtype=torch.float64) if math.isfinite(norm) else float("inf")

    # ---- what is configured

    def get_batch_info(self):
        """The three getters themselves, as DeepSpeed returns them."""
        return self.train_batch_size, self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps

    def get_type(self):
        return [group.get("type") for group in self.optimizer.param_groups]

    def get_mom(self):
        key = "momentum" if "momentum" in self.optimizer.param_groups[0] else "betas"
        return [group.get(key) for group in self.optimizer.param_groups]

    def optimizer_name(self):
        if "optimizer" not in self.config:
            return type(self.basic_optimizer).__name__ if self.basic_optimizer is not None else None
        from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS  # not at the start: it makes all classes of blocks

        name = self.config["optimizer"].get("type")
        return name.lower() if name and name.lower() in DEEPSPEED_OPTIMIZERS else name

    def optimizer_params(self):
        return self.config.get("optimizer", {}).get("params")

    def scheduler_name(self):
        return self.config.get("scheduler", {}).get("type")

    def scheduler_params(self):
        return self.config.get("scheduler", {}).get("params")

    def fp16_enabled(self):
        return self._resolved.compute_dtype == "float16"

    def bfloat16_enabled(self):
        return self._resolved.compute_dtype == "bfloat16"

    def fp16_auto_cast(self):
        return self._resolved.casts_inputs

    def torch_autocast_enabled(self):
        return self._resolved.autocast_dtype is not None

    def torch_autocast_dtype(self):
        return getattr(torch, self._resolved.autocast_dtype) if self._resolved.autocast_dtype else None

    def loss_scale(self):
        return self.counting_core.loss_scale

    def dynamic_loss_scale(self):
        return self.fp16_enabled() and self._resolved.scales_dynamically

    def initial_dynamic_scale(self):
        return int(self._resolved.initial_loss_scale)

    def get_data_types(self):
        return getattr(torch, self._resolved.compute_dtype), getattr(torch, self._resolved.grad_dtype)

    def postscale_gradients(self):
        return not self._value("prescale_gradients")

    def zero_optimization(self):
        return self.stage > 0

    def zero_optimization_stage(self):
        return self.stage

    def zero_optimization_partition_gradients(self):
        return self.stage >= 2

    def zero_optimization_partition_weights(self):
        return self.stage == 3

    def checkpoint_tag_validation_enabled(self):
        return self._value("checkpoint.tag_validation") != "Ignore"

    def checkpoint_tag_validation_fail(self):
        return self._value("checkpoint.tag_validation") == "Fail"

    @functools.cached_property
    def _config(self):
        """The parsed configuration, which programs of DeepSpeed's own read."""
        from deepspeed.runtime.config import DeepSpeedConfig  # not at the start: it makes all classes of blocks

        return DeepSpeedConfig(self.config)

    def get_compile_time(self):
        """Of passes of DeepCompile, of which none run here."""
        return []

    def zero_offload_optimizer(self):
        return (self.config.get("zero_optimization") or {}).get("offload_optimizer")

    def zero_offload_param(self):
        return (self.config.get("zero_optimization") or {}).get("offload_param")

    def zero_cpu_offload(self):
        return self._value("zero_optimization.offload_optimizer.device") == "cpu"

    # ---- data

    def take_training_data(self, dataset, collate_fn):
        """The argument training_data of initialize."""
        self.training_dataloader = self.deepspeed_io(dataset, collate_fn=collate_fn)

    def deepspeed_io(self, dataset, batch_size=None, route="train", pin_memory=True, data_sampler=None, collate_fn=None,
                     num_local_io_workers=None):
        """A loader of this rank's part of the dataset; shuffled for the route "train"."""
        curriculum = {}
        if data_sampler is None and route == "train" and self.curriculum_learning_enabled():
            curriculum = self._curriculum_for(dataset)
        if data_sampler is None and route != "train" and not isinstance(dataset, IterableDataset):
            data_sampler = DistributedSampler(dataset, self._data.size, self._data.rank, shuffle=False)
        return DeepSpeedDataLoader(
            dataset=dataset, batch_size=batch_size or self.train_micro_batch_size_per_gpu(), pin_memory=pin_memory,
            local_rank=self.local_rank, tput_timer=self.tput_timer if route == "train" else None, collate_fn=collate_fn,
            data_sampler=data_sampler, num_local_io_workers=num_local_io_workers,
            data_parallel_world_size=self._data.size, data_parallel_rank=self._data.rank,
            dataloader_drop_last=self.dataloader_drop_last(), deepspeed_dataloader_config=curriculum)

    def _curriculum_for(self, dataset):
        """What a DeepSpeedDataLoader takes to sample by the configuration's curriculum."""
        if not hasattr(dataset, "__len__"):
            raise made(_core.ConfigError, f"a curriculum chooses samples by their number, and a {type(dataset).__name__} has no length",
                       "data_efficiency.data_sampling.curriculum_learning", "give a dataset with __len__ and __getitem__, or set enabled to false")
        return {CURRICULUM_LEARNING: True, DATA_EFFICIENCY: self.data_efficiency_config(), DATA_PARALLEL_GROUP: self._data,
                GRADIENT_ACCUMULATION_STEPS: self.gradient_accumulation_steps(), GLOBAL_RANK: self.global_rank,
                DATA_SAMPLING_NUM_WORKERS: self.data_sampling_config()[DATA_SAMPLING_NUM_WORKERS]}

    def _curriculum_loader(self):
        """The training_dataloader, where it samples by a curriculum."""
        loader = self.training_dataloader
        loader = loader.loader if isinstance(loader, RepeatingLoader) else loader
        return loader if getattr(loader, "curriculum_learning_enabled", False) else None

    def set_data_post_process_func(self, post_process_func):
        """post_process_func(batch, the sampler's state) makes the batch that the training_dataloader gives: for a curriculum that changes
        samples, such as by cutting them to state["current_difficulties"]["seqlen"]."""
        loader = self._curriculum_loader()
        if loader is not None:
            loader.post_process_func = post_process_func
        elif self.training_dataloader is not None:
            logger.warning("set_data_post_process_func() does nothing: the training_dataloader has no curriculum")

    def set_custom_curriculum_learning_schedule(self, schedule_func_dict):
        """{metric: function of the step}, for metrics whose schedule_type is custom."""
        loader = self._curriculum_loader()
        if loader is not None:
            loader.data_sampler.set_custom_curriculum_learning_schedule(schedule_func_dict)

    def data_state(self):
        loader = self._curriculum_loader()
        return None if loader is None else loader.sampler_state()

    def load_data_state(self, state):
        loader = self._curriculum_loader()
        if loader is not None:
            loader.load_sampler_state(state)

    def data_efficiency_config(self):
        return get_data_efficiency_config(self.config)

    def data_sampling_config(self):
        return self.data_efficiency_config()[DATA_SAMPLING]

    def curriculum_learning_config(self):
        return self.data_sampling_config()[CURRICULUM_LEARNING]

    def random_ltd_config(self):
        return self.data_efficiency_config()[DATA_ROUTING][RANDOM_LTD]

    # ---- weights and checkpoints

    def empty_partition_cache(self):
        """Does nothing: stage 3 releases what it keeps gathered by itself."""

    def offload_states(self, include=None, device=OffloadDeviceEnum.cpu, pin_memory=True, non_blocking=False):
        """Frees the device's memory for something else until reload_states(); it is free on return, whatever `non_blocking` says. CPU ranks have
        nothing to move. Gradients have one buffer, which either of their names moves. In one dtype hp_params are the parameters themselves and go
        with lp_params. Collective."""
        if self.optimizer is None:
            raise AssertionError("offload_states() moves training state, but this engine has no optimizer")
        if device == OffloadDeviceEnum.nvme:
            raise ValueError("offload_states() only moves to host memory: use device='cpu'")
        states = {OffloadStateTypeEnum(state) for state in include or OffloadStateTypeEnum}  # a ValueError names what there is no such state of
        if self.device.type == "cpu" or device == OffloadDeviceEnum.none:
            return
        gradients = {OffloadStateTypeEnum.lp_grads, OffloadStateTypeEnum.contiguous_grad_buffer}
        if states & gradients:
            states |= gradients
        if self._resolved.compute_dtype == "float32":
            states.discard(OffloadStateTypeEnum.hp_params)
            states |= {OffloadStateTypeEnum.hp_params} if OffloadStateTypeEnum.lp_params in states else set()
        self.move_states(optimizer=OffloadStateTypeEnum.optim_states in states, master=OffloadStateTypeEnum.hp_params in states,
                         parameters=OffloadStateTypeEnum.lp_params in states, gradients=bool(states & gradients), pinned=pin_memory)
        self.states_on_host |= states

    states_on_host = frozenset()

    def reload_states(self, non_blocking=False):
        """Undoes offload_states(). Collective."""
        self.bring_states_back()
        self.states_on_host = frozenset()

    def save_16bit_model(self, save_dir, save_filename="pytorch_model.bin", exclude_frozen_parameters=False):
        """Saves the module's state dict in the training dtype, for from_pretrained and torch.load. Collective. Returns False, and
        nothing is written, at stage 3 without stage3_gather_16bit_weights_on_model_save."""
        if self.stage == 3 and not self.zero_gather_16bit_weights_on_model_save():
            log_dist("save_16bit_model wrote nothing: stage 3 needs 'zero_optimization.stage3_gather_16bit_weights_on_model_save': true",
                     ranks=[0], level=logging.WARNING)
            return False
        self.save_weights(os.path.join(save_dir, save_filename), exclude_frozen_parameters)
        return True

    save_fp16_model = save_16bit_model

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        state = self.consolidated_state_dict(exclude_frozen_parameters)
        return state if self._world.rank == 0 else None

    def _consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        return self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)

    def module_state_dict(self, destination=None, prefix="", keep_vars=False, exclude_frozen_parameters=False):
        state = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters(prefix=prefix.rstrip("."), remove_duplicate=False):
                if not parameter.requires_grad:
                    state.pop(name, None)
        return state

    def load_module_state_dict(self, checkpoint, strict=True, custom_load_fn=None, fetch_z3_params=False):
        """`checkpoint`: a dict with the key "module"."""
        state = checkpoint["module"]
        if custom_load_fn is not None:
            custom_load_fn(src=state, dst=self.module)
        else:
            self.load_state_dict_into_module(state, strict)

    @functools.cached_property
    def checkpoint_engine(self):
        """For files of the program's own; save_checkpoint does not use it."""
        return TorchCheckpointEngine()

    def save_checkpoint(self, save_dir, tag=None, client_state=None, save_latest=True, exclude_frozen_parameters=False,
                        trust_pickle=False):
        saved = super().save_checkpoint(save_dir, tag, client_state, save_latest, exclude_frozen_parameters, trust_pickle)
        if self.stage > 0 and self._world.rank == 0:
            self._copy_recovery_script(save_dir)
        return saved

    def _copy_recovery_script(self, save_path):
        path = os.path.join(save_path, _RECOVERY_SCRIPT)
        with open(path, "w", encoding="utf-8") as file:
            file.write(_RECOVERY_TEXT)
        self._change_recovery_script_permissions(path)

    def _change_recovery_script_permissions(self, dst):
        os.chmod(dst, os.stat(dst).st_mode | stat.S_IEXEC)
