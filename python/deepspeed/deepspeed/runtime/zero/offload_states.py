"""Where training state lies, for programs that move it with engine.offload_states()."""


def get_state_devices(model, state):
    """The devices of an OffloadStateTypeEnum: CPU ranks keep everything in the host's memory."""
    return {model.device}
