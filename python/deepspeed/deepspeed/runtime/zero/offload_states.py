"""Where training state lies, for programs that move it with engine.offload_states()."""

import torch


def get_state_devices(model, state):
    """The devices of an OffloadStateTypeEnum of an engine."""
    return {torch.device("cpu") if state in model.states_on_host else model.device}
