"""The import name `deepspeed`, for programs written for DeepSpeed: the same names and signatures, on Tessera's engine.

Everything is loaded at its first use, so that `import deepspeed` costs next to nothing beside torch. What DeepSpeed has
and Tessera has not says so by name (see _not_yet.py).
"""

try:
    import tessera  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "tessera":
        raise
    raise ImportError("this deepspeed is Tessera's drop-in and needs the tessera package: "
                      "run 'pip install ./python' in Tessera's folder first") from missing

from deepspeed import _not_yet
from deepspeed._lazy import lazy_attributes

_not_yet.refuse_missing_modules()

__version__ = version = "0.19.8+tessera"
__version_major__, __version_minor__, __version_patch__ = 0, 19, 8
__git_hash__ = git_hash = "unknown"
__git_branch__ = git_branch = "unknown"

dist = None  # DeepSpeed's own default; initialize() leaves deepspeed.comm here

__getattr__ = lazy_attributes(__name__, {
    "DeepSpeedConfig": "deepspeed.runtime.config",
    "DeepSpeedConfigError": "deepspeed.runtime.config",
    "DeepSpeedDataLoader": "deepspeed.runtime.dataloader",
    "DeepSpeedEngine": "deepspeed.runtime.engine",
    "DeepSpeedOptimizer": "deepspeed.runtime.base_optimizer",
    "DeepSpeedOptimizerCallable": "deepspeed.runtime.initialize",
    "DeepSpeedSchedulerCallable": "deepspeed.runtime.initialize",
    "MUON_OPTIMIZER": "deepspeed.runtime.config",
    "OnDevice": "deepspeed.utils.init_on_device",
    "PipelineEngine": "deepspeed.runtime.pipe.engine",
    "PipelineModule": "deepspeed.runtime.pipe.module",
    "TORCH_DISTRIBUTED_DEFAULT_PORT": "deepspeed.constants",
    "_add_core_arguments": "deepspeed._arguments",
    "add_config_arguments": "deepspeed._arguments",
    "get_accelerator": "deepspeed.accelerator",
    "init_distributed": "deepspeed.comm",
    "initialize": "deepspeed.runtime.initialize",
    "log_dist": "deepspeed.utils.logging",
    "logger": "deepspeed.utils.logging",
}, {
    "checkpointing": "deepspeed.runtime.activation_checkpointing.checkpointing",
    "zero": "deepspeed.runtime.zero",
})
