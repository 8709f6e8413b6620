"""What clients reach into at stage 3 to generate without hooks: engine.optimizer.parameter_offload."""


class _Coordinator:
    """Tessera's record of the order of units adapts by itself: there is nothing to invalidate."""

    def is_invalid_trace(self):
        return True

    def _invalidate_trace(self):
        pass


class DeepSpeedZeRoOffload:
    def __init__(self, engine):
        self._engine = engine  # a weak reference
        self.param_coordinator = _Coordinator()
        self.backward_hooks = []

    @property
    def module(self):
        return self._engine().module

    @property
    def forward_hooks(self):
        return self._engine().hooks.handles

    @forward_hooks.setter
    def forward_hooks(self, handles):
        self._engine().hooks.handles = handles

    def _register_deepspeed_module(self, module):
        self._engine().hooks.attach()
