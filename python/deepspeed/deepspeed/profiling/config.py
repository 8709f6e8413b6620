"""The ds_config's block flops_profiler."""

from deepspeed.runtime.config_utils import DeepSpeedConfigObject

FLOPS_PROFILER = "flops_profiler"

_DEFAULTS = {"enabled": False, "recompute_fwd_factor": 0.0, "profile_step": 1, "module_depth": -1, "top_modules": 1,
             "detailed": True, "output_file": None}


class DeepSpeedFlopsProfilerConfig(DeepSpeedConfigObject):
    """One attribute a key."""

    def __init__(self, param_dict):
        given = param_dict.get(FLOPS_PROFILER, {})
        for key, default in _DEFAULTS.items():
            setattr(self, key, given.get(key, default))
