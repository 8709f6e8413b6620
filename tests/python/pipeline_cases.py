"""What pipeline_peer_runs.py trains: by name the ZeRO stage, how the module is made, and more of the configuration."""

CASES = {
    "stage 0": (0, {}, {}),
    "stage 1": (1, {"partition_method": "type:block"}, {}),
    "stage 1, recomputed": (1, {"activation_checkpoint_interval": 2}, {}),
    "stage 0, SGD, uniform": (0, {"partition_method": "uniform"}, {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}}),
}
