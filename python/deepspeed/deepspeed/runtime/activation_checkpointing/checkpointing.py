"""Activation checkpointing: checkpoint(function, *args) keeps the inputs of a call, and computes it again in backward.

configure() says where the inputs wait. Its settings are module variables under DeepSpeed's names; programs save and
restore them.
"""

import torch

from deepspeed import _names
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.utils.bwc import bwc_tensor_model_parallel_group, bwc_tensor_model_parallel_rank
from deepspeed.utils.bwc import bwc_tensor_model_parallel_world_size
from deepspeed.utils.timer import FORWARD_GLOBAL_TIMER, SynchronizedWallClockTimer as Timers
from tessera.recompute import keep_on_host, keep_parts, recomputed
from tessera.rng_streams import RngStreams

_names.serve(__name__)

deepspeed_checkpointing_enabled = False
mpu = None
num_layers = None
PARTITION_ACTIVATIONS = False
CONTIGUOUS_CHECKPOINTING = False
CPU_CHECKPOINT = False
SYNCHRONIZE = False
PROFILE_TIME = False
timers = None

mp_group, mp_rank, mp_size = None, 0, 1

_MODEL_PARALLEL_RNG_TRACKER_NAME = "model-parallel-rng"


# Settings

def configure(mpu_, deepspeed_config=None, partition_activations=None, contiguous_checkpointing=None,
              num_checkpoints=None, checkpoint_in_cpu=None, synchronize=None, profile=None):
    """`deepspeed_config` (a dict, a path) has the block activation_checkpointing; the other arguments win over it.

    partition_activations needs an mpu with tensor-parallel ranks. contiguous_checkpointing is accepted and checked, and
    changes nothing: torch's allocator keeps the inputs in one piece each.
    """
    global mpu, num_layers, deepspeed_checkpointing_enabled, timers
    global PARTITION_ACTIVATIONS, CONTIGUOUS_CHECKPOINTING, CPU_CHECKPOINT, SYNCHRONIZE, PROFILE_TIME
    _configure_defaults()
    if mpu_ is not None:
        mpu = mpu_
    if deepspeed_config is not None:
        _configure_using_config_file(deepspeed_config, mpu=mpu)
    PARTITION_ACTIVATIONS = PARTITION_ACTIVATIONS if partition_activations is None else partition_activations
    CONTIGUOUS_CHECKPOINTING = (CONTIGUOUS_CHECKPOINTING if contiguous_checkpointing is None
                                else contiguous_checkpointing)
    num_layers = num_layers if num_checkpoints is None else num_checkpoints
    CPU_CHECKPOINT = CPU_CHECKPOINT if checkpoint_in_cpu is None else checkpoint_in_cpu
    SYNCHRONIZE = SYNCHRONIZE if synchronize is None else synchronize
    PROFILE_TIME = PROFILE_TIME if profile is None else profile
    if CONTIGUOUS_CHECKPOINTING:
        assert PARTITION_ACTIVATIONS, "contiguous checkpointing also needs partition_activations"
        assert num_layers is not None, "contiguous checkpointing needs the number of layers: pass num_checkpoints"
    timers = Timers() if PROFILE_TIME else None
    deepspeed_checkpointing_enabled = True


def _configure_defaults():
    global mpu, num_layers, deepspeed_checkpointing_enabled
    global PARTITION_ACTIVATIONS, CONTIGUOUS_CHECKPOINTING, CPU_CHECKPOINT, SYNCHRONIZE, PROFILE_TIME
    PARTITION_ACTIVATIONS = CONTIGUOUS_CHECKPOINTING = CPU_CHECKPOINT = SYNCHRONIZE = PROFILE_TIME = False
    mpu = num_layers = None
    deepspeed_checkpointing_enabled = True


def _configure_using_config_file(config, mpu=None):
    global num_layers, PARTITION_ACTIVATIONS, CONTIGUOUS_CHECKPOINTING, CPU_CHECKPOINT, SYNCHRONIZE, PROFILE_TIME
    block = DeepSpeedConfig(config, mpu=mpu).activation_checkpointing_config
    PARTITION_ACTIVATIONS = block.partition_activations
    CONTIGUOUS_CHECKPOINTING = block.contiguous_memory_optimization
    num_layers = block.number_checkpoints
    CPU_CHECKPOINT = block.cpu_checkpointing
    SYNCHRONIZE = block.synchronize_checkpoint_boundary
    PROFILE_TIME = block.profile


def is_configured():
    return deepspeed_checkpointing_enabled


def reset():
    """Between training and evaluation; nothing is kept that would have to go."""


def set_num_layers(nlayers):
    global num_layers
    num_layers = nlayers


def partition_activations_in_checkpoint(partition_activation):
    global PARTITION_ACTIVATIONS
    PARTITION_ACTIVATIONS = partition_activation


# Checkpointing

def checkpoint(function, *args, **kwargs):
    """function(*args, **kwargs), computed again in the backward pass."""
    _at_boundary(starts=True)
    outputs = recomputed(function, args, kwargs, _CUDA_RNG_STATE_TRACKER, _where_inputs_wait())
    _at_boundary(starts=False)
    return outputs


def non_reentrant_checkpoint(function, *args):
    """The same: also checkpoint() does not enter autograd from within autograd."""
    return checkpoint(function, *args)


def _where_inputs_wait():
    keeping = []
    if CPU_CHECKPOINT and torch.is_grad_enabled():
        keeping.append(keep_on_host())
    if PARTITION_ACTIVATIONS and bwc_tensor_model_parallel_world_size(mpu) > 1:
        keeping.append(keep_parts(bwc_tensor_model_parallel_group(mpu)))
    return keeping


def _at_boundary(starts):
    if SYNCHRONIZE:
        get_accelerator().synchronize()
    if timers is not None and starts:
        timers(FORWARD_GLOBAL_TIMER).start()
    elif timers is not None:
        timers(FORWARD_GLOBAL_TIMER).stop()
        timers.log([FORWARD_GLOBAL_TIMER])


# Random numbers under tensor parallelism

class CudaRNGStatesTracker(RngStreams):
    """Named streams of the accelerator's random numbers."""

    def __init__(self):
        super().__init__(get_accelerator(), _MODEL_PARALLEL_RNG_TRACKER_NAME)

    def fork(self, name=_MODEL_PARALLEL_RNG_TRACKER_NAME):
        return super().fork(name)


_CUDA_RNG_STATE_TRACKER = CudaRNGStatesTracker()


def _set_cuda_rng_state(new_state, device=-1):
    """Of the accelerator; -1 is the current device."""
    index = torch.device(device).index if not isinstance(device, int) else device
    get_accelerator().set_rng_state(new_state, None if index in (-1, None) else index)


def get_cuda_rng_tracker():
    return _CUDA_RNG_STATE_TRACKER


def model_parallel_cuda_manual_seed(seed):
    """The device's own stream from `seed`, the same on all tensor-parallel ranks, and a stream that differs there. 2718
    lies between the two, as in Megatron and DeepSpeed, so that runs draw the same numbers."""
    _CUDA_RNG_STATE_TRACKER.reset()
    get_accelerator().manual_seed(seed)
    _CUDA_RNG_STATE_TRACKER.add(_MODEL_PARALLEL_RNG_TRACKER_NAME, seed + 2718 + bwc_tensor_model_parallel_rank(mpu))


def model_parallel_reconfigure_tp_seed(seed):
    """A new seed for the stream that differs between tensor-parallel ranks."""
    device = get_accelerator()
    before = device.get_rng_state()
    device.manual_seed(seed + 2718 + bwc_tensor_model_parallel_rank(mpu))
    states = _CUDA_RNG_STATE_TRACKER.get_states()
    states[_MODEL_PARALLEL_RNG_TRACKER_NAME] = device.get_rng_state()
    _CUDA_RNG_STATE_TRACKER.set_states(states)
    device.set_rng_state(before)
