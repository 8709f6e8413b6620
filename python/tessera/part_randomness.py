"""Random numbers of tensor ranks. What all ranks compute alike they must drop alike; of their own parts, which may be of different sizes, each
drops its own.

    common    enter() draws a seed, the same on all ranks, and keeps the common state
    own       … by which the rank draws, until leave(): the common state goes on where it was left
"""

import torch


class PartRandomness:
    """Of a model that is cut; for where it trains. Parts do not nest: entering again, or leaving what was not entered, does nothing."""

    def __init__(self, rank):
        self._rank, self._common = rank, None

    def enter(self):
        if self._common is None:
            seed = int(torch.randint(1 << 48, ()))
            self._common = _state()
            torch.manual_seed(seed + 1 + self._rank)

    def leave(self):
        if self._common is not None:
            _set_state(self._common)
            self._common = None

    def of_module(self, module, is_own):
        """The module draws by the rank's own state, or by the common one, whichever it is called in."""
        if is_own:
            module.register_forward_pre_hook(lambda *_: self.enter())
            module.register_forward_hook(lambda *_: self.leave(), always_call=True)
        else:
            module.register_forward_pre_hook(lambda *_: self._swap())
            module.register_forward_hook(lambda *_: self._swap(), always_call=True)

    def _swap(self):
        if self._common is not None:
            self._common, common = _state(), self._common
            _set_state(common)


def _state():
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def _set_state(state):
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
