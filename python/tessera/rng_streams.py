"""Named streams of random numbers in addition to the device's own: dropout that differs between tensor-parallel ranks, or is
the same on all of them, whatever else drew numbers in between.

    streams.add("model-parallel-rng", seed)
    with streams.fork():                       draws from the stream; the device's own stream stays where it was
        dropout(x)

`device` is an accelerator object with get_rng_state, set_rng_state and manual_seed.
"""

import contextlib


class RngStreams:
    def __init__(self, device, default_name):
        self.states_ = {}
        self.seeds_ = set()
        self._device, self._default_name = device, default_name

    def reset(self):
        self.states_ = {}
        self.seeds_ = set()

    def get_states(self):
        return dict(self.states_)

    def set_states(self, states):
        self.states_ = states

    def add(self, name, seed):
        if seed in self.seeds_:
            raise Exception(f"seed {seed} is already in use; each stream needs its own")
        if name in self.states_:
            raise Exception(f"there is already a stream named {name}; reset() removes them all")
        before = self._device.get_rng_state()
        self._device.manual_seed(seed)
        self.states_[name] = self._device.get_rng_state()
        self.seeds_.add(seed)
        self._device.set_rng_state(before)

    @contextlib.contextmanager
    def fork(self, name=None):
        name = name or self._default_name
        if name not in self.states_:
            raise Exception(f"there is no random stream named {name}; create it with add(name, seed)")
        before = self._device.get_rng_state()
        self._device.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = self._device.get_rng_state()
            self._device.set_rng_state(before)
