"""A context in which new tensors are on one device and, if floating-point, have one dtype.

    with OnDevice(dtype=torch.bfloat16, device="meta"):
        model = Transformer()          # shapes only: no memory, no initialisation

`device` and `dtype` that a call names itself: the device stays, the dtype is replaced.
"""

from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors


class OnDevice(TorchFunctionMode):
    """May be re-entered after it was left; with `enabled=False` it does nothing."""

    def __init__(self, dtype, device="meta", enabled=True):
        super().__init__()
        self.dtype, self.device, self.enabled = dtype, device, enabled
        self._constructors = _device_constructors()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.enabled or function not in self._constructors:
            return function(*args, **kwargs)
        if kwargs.get("device") is None:
            kwargs = {**kwargs, "device": self.device}
        made = function(*args, **kwargs)
        return made.to(self.dtype) if self.dtype is not None and made.is_floating_point() else made
