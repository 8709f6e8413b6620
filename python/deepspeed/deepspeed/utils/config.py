"""The ds_config's block timers."""

from deepspeed.runtime.config_utils import DeepSpeedConfigModel

TIMERS = "timers"
TIMERS_THROUGHPUT = "throughput"


class DeepSpeedThroughputTimerConfig(DeepSpeedConfigModel):
    """`synchronized`: the device is waited for before the clock is read."""

    enabled: bool = True
    synchronized: bool = True


def get_timers_config(param_dict):
    return DeepSpeedThroughputTimerConfig(**param_dict.get(TIMERS, {}).get(TIMERS_THROUGHPUT, {}))
