"""The ds_config's block comms_logger."""

from deepspeed import _names
from deepspeed.comm.constants import COMMS_LOGGER
from deepspeed.runtime.config_utils import DeepSpeedConfigModel

_names.serve(__name__)


class CommsLoggerConfig(DeepSpeedConfigModel):
    enabled: bool = False
    prof_all: bool = True
    prof_ops: list = []
    verbose: bool = False
    debug: bool = False


class DeepSpeedCommsConfig:
    """`comms_logger` is there only where the ds_config has the block."""

    def __init__(self, ds_config):
        self.comms_logger_enabled = COMMS_LOGGER in ds_config
        if self.comms_logger_enabled:
            self.comms_logger = CommsLoggerConfig(**ds_config[COMMS_LOGGER])
