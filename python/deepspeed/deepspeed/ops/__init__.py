"""Optimizers by the names of DeepSpeed's operators. Their arithmetic is Tessera's own, compiled with it: nothing is built
at first use."""

from deepspeed._lazy import lazy_attributes

__compatible_ops__ = {"async_io": True, "cpu_adam": True, "cpu_adagrad": True, "cpu_lion": True, "fused_adam": True,
                      "fused_lamb": True, "fused_lion": True, "utils": True}

__getattr__ = lazy_attributes(__name__)
