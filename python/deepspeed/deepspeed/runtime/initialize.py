"""deepspeed.initialize."""

import os
from typing import Callable, Iterable, Optional, Union

import tessera
import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config_keys import DeepSpeedConfigError
from deepspeed.runtime.engine import DeepSpeedEngine
from tessera import _core
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
    accelerator = get_accelerator()
    accelerator.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    try:
        return tessera.initialize(
            args=args, model=model, optimizer=optimizer, model_parameters=model_parameters, training_data=training_data,
            lr_scheduler=lr_scheduler, mpu=mpu, collate_fn=collate_fn, config=config, config_params=config_params,
            device=torch.device(accelerator.current_device_name()), engine_class=DeepSpeedEngine)
    except _core.ConfigError as error:
        named = DeepSpeedConfigError(*error.args)
        vars(named).update(vars(error))
        raise named from error
