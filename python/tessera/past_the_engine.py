"""A forward hook of the client's model, for forwards that do not go through the engine: model(x) in place of engine(x). The
gradients of such a forward come to the engine all the same, and have to be scaled and divided as the others are.
"""

import weakref

import torch


class PastTheEngine:
    """The hook. A copy of the model has no engine."""

    _engine = staticmethod(lambda: None)

    def __init__(self, engine):
        self._engine = weakref.ref(engine)

    def __getstate__(self):
        return {}

    def __call__(self, module, args, output):
        if torch.compiler.is_compiling():
            return
        engine = self._engine()
        if engine is not None and not engine.in_forward:
            engine.expect_backward_by_hand(output)
