"""Training state that a program moves from a device into host memory for a while, and back."""

from tessera import _core
from tessera.error_report import made


class MovableStates:
    """What an Engine (`core`, counting_core, hooks, torch_step, _moved) does with it."""

    def move_states(self, parameters, optimizer, **others):
        """Until bring_states_back() nothing but a forward without gradients may run, and that neither if the parameters are moved. Of several
        calls each moves what is still there. `others`: see StatesToMove in C++. Collective."""
        if not self._moved:
            self.core.finish_update()
        if parameters and self.hooks is not None:
            self.hooks.refuses = _refuse
        of_client = self.torch_step.state_tensors() if optimizer and self.torch_step is not None else []
        self._moved.append(_core.MovedStates(self.counting_core, parameters=parameters, optimizer=optimizer, of_client=of_client, **others))

    def bring_states_back(self):
        bring_back(self._moved)
        if self.hooks is not None:
            self.hooks.refuses = None

    def _require_states(self):
        if self._moved:
            _refuse()


def bring_back(moved):
    while moved:
        moved.pop().bring_back()


def _refuse():
    raise made(_core.UsageError, "training state is in host memory, where offload_states() has moved it", "this engine", "call reload_states() first")
