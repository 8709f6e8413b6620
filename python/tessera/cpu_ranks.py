"""Makes Accelerate, and the Trainer on it, count ranks that have no GPU, and train them in bf16.

Accelerate takes the backend of torch.distributed from the accelerator that it finds; under DeepSpeed without one it has none, and
each rank goes on as if it were alone. Here it gets gloo. TrainingArguments refuse bf16 without a GPU, unless they are told to leave
accelerators, and DeepSpeed with them, alone. Imported by `deepspeed`, and, in the ranks of a launcher, at Python's
start (tessera.pth), as Accelerate decides before it imports deepspeed.
"""

import functools
import os

from tessera.when_imported import when_imported


def _counts_as_rank():
    return int(os.environ.get("LOCAL_RANK", "-1")) >= 0 and os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"


def _is_here():
    """Whether `deepspeed` is Tessera's."""
    try:
        import deepspeed
    except ImportError:
        return False
    return deepspeed.__version__.endswith("+tessera")


def _give_backend(state):
    """`state`: the module accelerate.state."""
    found_by_accelerate = state.PartialState._prepare_backend

    def _prepare_backend(self, cpu=False, *more, **named):
        backend, kind = found_by_accelerate(self, cpu, *more, **named)
        if backend is None and not cpu and _counts_as_rank() and _is_here():
            backend = "gloo"
        return backend, kind

    state.PartialState._prepare_backend = _prepare_backend


def _take_bf16(training_args):
    """`training_args`: the module transformers.training_args."""
    arguments, found_by_transformers = training_args.TrainingArguments, training_args.is_torch_bf16_gpu_available
    check = arguments.__post_init__

    @functools.wraps(check)
    def __post_init__(self):
        training_args.is_torch_bf16_gpu_available = lambda: found_by_transformers() or bool(self.deepspeed) and _is_here()
        try:
            check(self)
        finally:
            training_args.is_torch_bf16_gpu_available = found_by_transformers

    arguments.__post_init__ = __post_init__


when_imported("accelerate.state", _give_backend)
when_imported("transformers.training_args", _take_bf16)
