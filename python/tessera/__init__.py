"""Tessera for Python: train any torch.nn.Module in the C++ engine, with its training state sharded over ranks.

    import tessera
    engine, optimizer, _, _ = tessera.initialize(model=model, config="ds_config.json")
    for batch in loader:
        loss = engine(batch)
        engine.backward(loss)
        engine.step()

Programs written for DeepSpeed find the same engine under their own names in the package `deepspeed` (docs/migrating.md).
Modules that work on files are run by name: python -m tessera.import_deepspeed --help.
"""

import importlib
import importlib.metadata
import sys

_HOMES = {  # the engine's library is loaded when one of these is first used
    "Engine": "tessera.engine",
    "initialize": "tessera.initialize",
    "Error": "tessera._core",
    "__version__": "tessera._core",
}
__all__ = ["Engine", "Error", "initialize"]


def _check_torch():
    """LibTorch keeps its binary interface within one release only: with another, _core would fail somewhere later."""
    try:
        built_for = importlib.import_module("tessera._built_for").TORCH_RELEASE
        found = importlib.metadata.version("torch")
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return  # the files alone, or no torch, which is then missed by name
    if found.split(".")[:2] != built_for.split("."):
        raise ImportError(
            f"this build of tessera is for torch {built_for}, but torch {found} is installed\n"
            f"where: {__path__[0]}\n"
            f"fix: rebuild it for this torch, in Tessera's repository: pip install --force-reinstall --no-deps ./python"
        )


if "tessera.doctor" not in sys.orig_argv:  # which says it in its own way, with what else is wrong
    _check_torch()


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'tessera' has no attribute '{name}'")
    importlib.import_module("torch")  # its libraries have to be there before ours
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
