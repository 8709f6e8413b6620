"""Tessera for Python: trains any torch.nn.Module in the C++ engine, its training state sharded over ranks.

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

_HOMES = {  # the engine's library is loaded when one of these is first used
    "Engine": "tessera.engine",
    "initialize": "tessera.initialize",
    "Error": "tessera._core",
    "__version__": "tessera._core",
}
__all__ = ["Engine", "Error", "initialize"]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'tessera' has no attribute '{name}'")
    importlib.import_module("torch")  # its libraries have to be there before ours
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
