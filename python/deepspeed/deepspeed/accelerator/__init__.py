"""The device that a run computes on, behind one object: `get_accelerator()`."""

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator  # noqa: F401
from deepspeed.accelerator.real_accelerator import (  # noqa: F401
    get_accelerator,
    is_current_accelerator_supported,
    set_accelerator,
)
