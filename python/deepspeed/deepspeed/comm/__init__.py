"""Process groups and collectives, torch.distributed's under DeepSpeed's names."""

from deepspeed._lazy import borrowed_attributes, lazy_attributes

_submodule = lazy_attributes(__name__)
_borrowed = borrowed_attributes(__name__, "deepspeed.comm.comm", "deepspeed.comm.constants", "deepspeed.comm.utils")


def __getattr__(name):
    try:
        return _borrowed(name)
    except AttributeError:
        return _submodule(name)
