"""Where the main thread is in Python, for the report of a hang: faulthandler writes it when the engine asks that thread for its
own stack. It acts when it is imported."""

import faulthandler
import os

from tessera import _core

_signal = _core.main_stack_signal()
if _signal:
    _file = os.memfd_create("tessera-stack")
    faulthandler.register(_signal, file=_file, all_threads=False, chain=True)  # the engine's handler is the next
    _core.set_script_stack_file(_file)
