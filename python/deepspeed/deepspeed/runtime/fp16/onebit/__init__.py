"""Names of the 1-bit optimizers."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__, {
    "OnebitAdam": "deepspeed.runtime.fp16.onebit.adam",
    "OnebitLamb": "deepspeed.runtime.fp16.onebit.lamb",
    "ZeroOneAdam": "deepspeed.runtime.fp16.onebit.zoadam",
})
