"""The import name `deepspeed`, for programs written for DeepSpeed: the same names and signatures, on Tessera's engine.

Everything is loaded at its first use, so that `import deepspeed` costs next to nothing beside torch. _names.py says where
names are defined that have no file of their own, and _not_yet.py what DeepSpeed has and Tessera has not.
"""

try:
    import tessera  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "tessera":
        raise
    raise ImportError("this deepspeed is Tessera's drop-in and needs the tessera package: "
                      "run 'pip install ./python' in Tessera's folder first") from missing

from deepspeed import _names
from tessera import clipping_by_hand, cpu_ranks  # noqa: F401  they act by themselves

_names.serve(__name__)

__version__ = version = "0.19.8+tessera"
__version_major__, __version_minor__, __version_patch__ = 0, 19, 8
__git_hash__ = git_hash = "unknown"
__git_branch__ = git_branch = "unknown"

dist = None  # DeepSpeed's own default; initialize() leaves deepspeed.comm here
