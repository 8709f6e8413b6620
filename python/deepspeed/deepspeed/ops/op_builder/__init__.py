"""DeepSpeed's builders of compiled operators, by name. Tessera's are compiled with it: nothing is built here, and programs
that ask whether an operator is there (`deepspeed.ops.__compatible_ops__[CPUAdamBuilder.NAME]`) get their answer."""

import types

import torch

from deepspeed import _names

_names.serve(__name__)

__compatible_ops__ = {"async_io": True, "cpu_adam": True, "cpu_adagrad": True, "cpu_lion": True, "fused_adam": True,
                      "fused_lamb": True, "fused_lion": True, "utils": True}


class OpBuilder:
    """One operator. `load()` gives its functions, where programs call them."""

    NAME = "none"

    def __init__(self, name=None):
        self.name = name or self.NAME

    @staticmethod
    def is_rocm_pytorch():
        return torch.version.hip is not None

    def is_compatible(self, verbose=False):
        return __compatible_ops__.get(self.name, False)

    def builder_available(self):
        return self.is_compatible()

    def load(self, verbose=True):
        raise NotImplementedError(f"{type(self).__name__}.load: Tessera compiles no operators when a program runs, so there is no '{self.name}' to "
                                  "load; what its engine computes is used through the classes of deepspeed.ops, such as deepspeed.ops.adam.FusedAdam")


def _builder(class_name, op_name):
    return type(class_name, (OpBuilder,), {"NAME": op_name, "__module__": __name__})


NotImplementedBuilder = _builder("NotImplementedBuilder", "deepspeed_not_implemented")  # of what get_op_builder does not know
AsyncIOBuilder = _builder("AsyncIOBuilder", "async_io")
CPUAdagradBuilder = _builder("CPUAdagradBuilder", "cpu_adagrad")
CPUAdamBuilder = _builder("CPUAdamBuilder", "cpu_adam")
CPULionBuilder = _builder("CPULionBuilder", "cpu_lion")
FusedAdamBuilder = _builder("FusedAdamBuilder", "fused_adam")
FusedLambBuilder = _builder("FusedLambBuilder", "fused_lamb")
FusedLionBuilder = _builder("FusedLionBuilder", "fused_lion")


def _as_bytes(tensor):
    """The same memory as bytes, flat; of a list, each."""
    if isinstance(tensor, (list, tuple)):
        return [_as_bytes(each) for each in tensor]
    return tensor.view(-1).view(torch.uint8)


class UtilsBuilder(OpBuilder):
    NAME = "utils"

    def load(self, verbose=True):
        return types.SimpleNamespace(flatten=torch._utils._flatten_dense_tensors,
                                     unflatten=torch._utils._unflatten_dense_tensors, cast_to_byte_tensor=_as_bytes)
