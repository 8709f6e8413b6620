"""What pipeline_peer_runs.py trains: by name the ZeRO stage, how the module is made, and more of the configuration. At stage 0 DeepSpeed
clips by the norm of the first stage's parameters alone, so those cases do not clip."""

CASES = {
    "stage 0": (0, {}, {"gradient_clipping": 0.0}),
    "stage 1, clipped": (1, {"partition_method": "type:block"}, {}),
    "stage 0, SGD, uniform": (0, {"partition_method": "uniform"}, {"gradient_clipping": 0.0,
                                                                   "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}}),
}
