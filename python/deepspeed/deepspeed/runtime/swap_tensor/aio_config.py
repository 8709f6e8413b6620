"""The ds_config's block aio."""

from deepspeed import _names
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.swap_tensor import constants

_names.serve(__name__)

AIO_DEFAULT_DICT = {
    constants.AIO_BLOCK_SIZE: constants.AIO_BLOCK_SIZE_DEFAULT,
    constants.AIO_QUEUE_DEPTH: constants.AIO_QUEUE_DEPTH_DEFAULT,
    constants.AIO_INTRA_OP_PARALLELISM: constants.AIO_INTRA_OP_PARALLELISM_DEFAULT,
    constants.AIO_SINGLE_SUBMIT: constants.AIO_SINGLE_SUBMIT_DEFAULT,
    constants.AIO_OVERLAP_EVENTS: constants.AIO_OVERLAP_EVENTS_DEFAULT,
    constants.AIO_USE_GDS: constants.AIO_USE_GDS_DEFAULT,
}


def get_aio_config(param_dict):
    given = param_dict.get(constants.AIO) or {}
    config = {key: given.get(key, default) for key, default in AIO_DEFAULT_DICT.items()}
    if config[constants.AIO_USE_GDS]:
        assert get_accelerator().device_name() == "cuda", \
            "aio.use_gds is true, but GPUDirect storage needs a CUDA device; set it to false"
    return config
