"""At Python's start where clients run on DeepSpeed itself: their packages come behind DeepSpeed's own environment, and Accelerate
counts ranks without a GPU, which under DeepSpeed it does not, and the Trainer takes bf16 there (tessera.cpu_ranks does it for Tessera).
"""

import os
import site
import sys
from pathlib import Path

site.addsitedir(os.environ["CLIENT_PACKAGES"])
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python" / "tessera"))
from when_imported import when_imported  # noqa: E402  the file alone: Tessera is not part of this environment

sys.path.pop(0)


def _give_backend(state):
    found = state.PartialState._prepare_backend

    def prepare(self, cpu=False, *more, **named):
        backend, kind = found(self, cpu, *more, **named)
        asks = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
        return (backend or ("gloo" if asks and not cpu else None)), kind

    state.PartialState._prepare_backend = prepare


def _take_bf16(training_args):
    training_args.is_torch_bf16_gpu_available = lambda: True


when_imported("accelerate.state", _give_backend)
when_imported("transformers.training_args", _take_bf16)
