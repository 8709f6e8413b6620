"""deepspeed.initialize."""

import os
from typing import Callable, Iterable, Optional, Union

import tessera
import torch
from deepspeed import comm as dist
from deepspeed import git_version_info
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config_keys import DeepSpeedConfigError
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import groups, log_dist
from deepspeed.utils.logging import logger
from tessera import _core, parallelism, shared_sequences, tensor_parallel
from tessera.config_source import chosen_source
from tessera.config_text import read_config
from tessera.error_report import made
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

DeepSpeedOptimizerCallable = Callable[[Union[Iterable[Parameter], dict]], Optimizer]
DeepSpeedSchedulerCallable = Callable[[Optimizer], LRScheduler]


def initialize(args=None, model=None, optimizer: Optional[Union[Optimizer, DeepSpeedOptimizerCallable]] = None,
               model_parameters=None, training_data=None,
               lr_scheduler: Optional[Union[LRScheduler, DeepSpeedSchedulerCallable]] = None, distributed_port=29500,
               mpu=None, dist_init_required=None, collate_fn=None, config=None, mesh_param=None, config_params=None):
    """See tessera.initialize. Makes torch.distributed's default group first; with dist_init_required False it must be there."""
    if model is None:
        raise AssertionError("deepspeed.initialize requires a model")
    _check_local_rank(args)
    parallelism.refuse_model_parallelism(model, mpu)
    accelerator = get_accelerator()
    accelerator.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    log_dist(f"DeepSpeed info: version={git_version_info.version}, git-hash={git_version_info.git_hash}, "
             f"git-branch={git_version_info.git_branch}", ranks=[0])
    if mesh_param is None and mpu is None:
        mesh_param = shared_sequences.mesh_of_config(read_config(chosen_source(args, config, config_params)), dist.get_world_size())
    parallelism.check_mesh_param(mesh_param, dist.get_world_size())
    _make_groups(model, mpu, mesh_param)
    try:
        made_here = tessera.initialize(
            args=args, model=model, optimizer=optimizer, model_parameters=model_parameters, training_data=training_data,
            lr_scheduler=lr_scheduler, mpu=mpu, collate_fn=collate_fn, config=config, mesh_param=mesh_param,
            config_params=config_params, device=torch.device(accelerator.current_device_name()),
            engine_class=_engine_class_of(model))
    except _core.ConfigError as error:
        named = DeepSpeedConfigError(*error.args)
        vars(named).update(vars(error))
        raise named from error
    if dist.get_rank() == 0:
        _warn_of_data_efficiency(made_here[0], training_data)
    if mpu is None and parallelism.unit_of(model) is None and (ranks := tensor_parallel.ranks_that_cut(model, "tp")) > 1:
        groups._init_tp_mesh_device(ranks)
        made_here[0].mpu = groups
    else:
        made_here[0].mpu = mpu if mpu is not None else parallelism.unit_of(model)
    if (ranks := tensor_parallel.ranks_that_cut(model, "ep")) > 1:
        groups._create_expert_and_data_parallel(ranks)
    return made_here


def _engine_class_of(model):
    if parallelism.unit_of(model) is None:
        return DeepSpeedEngine
    from deepspeed.runtime.pipe.engine import PipelineEngine  # not at the start: most programs have no pipeline

    return PipelineEngine


def _warn_of_data_efficiency(engine, training_data):
    block = engine.data_efficiency_config()
    sampling = block["data_sampling"]
    for key in ("curriculum_learning", "dynamic_batching"):
        if sampling[key]["enabled"] and not (block["enabled"] and sampling["enabled"]):
            logger.warning(f"data_efficiency.data_sampling.{key}.enabled is true, so it acts, as in DeepSpeed, "
                           "although enabled is false in a block around it")
    if sampling["curriculum_learning"]["enabled"] and training_data is None:
        logger.warning("the curriculum of data_efficiency acts in loaders that the engine makes: give initialize training_data, or call "
                       "engine.deepspeed_io")


def _check_local_rank(args):
    """args.local_rank, where a program has it, is the launcher's; -1 and None stand for none."""
    named, own = getattr(args, "local_rank", None), os.environ.get("LOCAL_RANK")
    if named is not None and own is not None and int(named) >= 0 and int(named) != int(own):
        raise made(_core.UsageError, f"args.local_rank is {named}, and the environment's LOCAL_RANK is {own}",
                   "the argument args of initialize", "set both to the same, or leave --local_rank out")


def _make_groups(model, mpu, mesh_param):
    """What deepspeed.utils.groups answers from; and layers with experts, which make groups of their own."""
    unit = mpu if mpu is not None else parallelism.unit_of(model)
    if unit is not None:
        groups.mpu = unit
    if mesh_param is not None:
        groups.mesh_device = dist.initialize_mesh_device(tuple(mesh_param), ("data_parallel", "sequence_parallel"))
    for module in model.modules():
        if hasattr(module, "set_deepspeed_parallelism"):
            module.set_deepspeed_parallelism(False)  # the ds_config's use_data_before_expert_parallelism; true is refused
