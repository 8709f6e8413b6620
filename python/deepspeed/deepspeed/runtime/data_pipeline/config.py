"""The ds_config's block data_efficiency, with its defaults filled in."""

DATA_EFFICIENCY = "data_efficiency"
CURRICULUM_LEARNING = "curriculum_learning"

_DEFAULTS = {
    "enabled": False,
    "seed": 1234,
    "data_sampling": {
        "enabled": False,
        "num_epochs": 1000,
        "num_workers": 0,
        "pin_memory": False,
        "curriculum_learning": {"enabled": False},
        "dynamic_batching": {
            "enabled": False,
            "lr_scaling_method": "linear",
            "min_batch_size": 1,
            "max_batch_size": None,
            "sequence_picking_order": "dataloader",
            "verbose": False,
        },
    },
    "data_routing": {
        "enabled": False,
        "random_ltd": {"enabled": False, "layer_token_lr_schedule": {"enabled": False}},
    },
}


def _filled(given, defaults):
    """`given` over `defaults`, block by block; a block is taken as it is where the defaults have none."""
    merged = {key: _filled(given.get(key, {}), value) if isinstance(value, dict) else given.get(key, value)
              for key, value in defaults.items()}
    return {**given, **merged}


def get_data_efficiency_config(param_dict):
    given = param_dict.get(DATA_EFFICIENCY, {})
    return _filled({key: value for key, value in given.items() if key in _DEFAULTS}, _DEFAULTS)


def get_data_efficiency_enabled(param_dict):
    return param_dict.get(DATA_EFFICIENCY, {}).get("enabled", False)
