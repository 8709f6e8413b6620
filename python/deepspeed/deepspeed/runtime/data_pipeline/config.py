"""The ds_config's block data_efficiency, as DeepSpeed shows it: each function takes a dict with the block that it reads, and fills in what is
not given."""

from deepspeed import _names
from deepspeed._key_table import default_of, rows_in
from deepspeed.runtime.data_pipeline.constants import (
    CURRICULUM_LEARNING,
    CURRICULUM_LEARNING_METRICS,
    DATA_EFFICIENCY,
    DATA_ROUTING,
    DATA_SAMPLING,
    DYNAMIC_BATCHING,
    DYNAMIC_BATCHING_MAX_BATCH_SIZE,
    DYNAMIC_BATCHING_MAX_TOKENS,
    RANDOM_LTD,
    RANDOM_LTD_LAYER_TOKEN_LR_SCHEDULE,
)

_names.serve(__name__)  # constants too

_SAMPLING, _ROUTING = f"{DATA_EFFICIENCY}.{DATA_SAMPLING}", f"{DATA_EFFICIENCY}.{DATA_ROUTING}"


def _reader(path):
    """A function of a dict with the key's own block: the key's value, or its default."""
    block, key = path.split(".")[-2:]
    default = default_of(path)

    def read(param_dict):
        return param_dict.get(block, {}).get(key, default)

    read.__doc__ = f"The value of '{path}', or {default!r}."
    return read


get_data_efficiency_enabled = _reader(f"{DATA_EFFICIENCY}.enabled")
get_data_efficiency_seed = _reader(f"{DATA_EFFICIENCY}.seed")
get_data_sampling_enabled = _reader(f"{_SAMPLING}.enabled")
get_data_sampling_num_epochs = _reader(f"{_SAMPLING}.num_epochs")
get_data_sampling_num_workers = _reader(f"{_SAMPLING}.num_workers")
get_data_sampling_pin_memory = _reader(f"{_SAMPLING}.pin_memory")
get_curriculum_learning_enabled = _reader(f"{_SAMPLING}.{CURRICULUM_LEARNING}.enabled")
get_data_routing_enabled = _reader(f"{_ROUTING}.enabled")
get_random_ltd_enabled = _reader(f"{_ROUTING}.{RANDOM_LTD}.enabled")


def get_data_efficiency_config(param_dict):
    given = param_dict.get(DATA_EFFICIENCY, {})
    return {"enabled": get_data_efficiency_enabled(param_dict), "seed": get_data_efficiency_seed(param_dict),
            DATA_SAMPLING: get_data_sampling(given), DATA_ROUTING: get_data_routing(given)}


def get_data_sampling(param_dict):
    given = param_dict.get(DATA_SAMPLING, {})
    return {**given, "enabled": get_data_sampling_enabled(param_dict), "num_epochs": get_data_sampling_num_epochs(param_dict),
            "num_workers": get_data_sampling_num_workers(param_dict), "pin_memory": get_data_sampling_pin_memory(param_dict),
            CURRICULUM_LEARNING: get_curriculum_learning(given), DYNAMIC_BATCHING: get_dynamic_batching(given)}


def _when_enabled(block, enabled, params):
    """Of a block that is off, nothing but that."""
    def read(param_dict):
        return {"enabled": enabled(param_dict), **(params(param_dict) if enabled(param_dict) else {})}

    read.__doc__ = f"The block '{block}'; of one that is off, {{'enabled': False}}."
    return read


def _params(block):
    def read(param_dict):
        return {key: value for key, value in param_dict.get(block, {}).items() if key != "enabled"}

    read.__doc__ = f"What '{block}' has beside 'enabled'."
    return read


get_curriculum_learning_params = _params(CURRICULUM_LEARNING)
get_random_ltd_params = _params(RANDOM_LTD)
_curriculum_when_enabled = _when_enabled(CURRICULUM_LEARNING, get_curriculum_learning_enabled, get_curriculum_learning_params)
_random_ltd_when_enabled = _when_enabled(RANDOM_LTD, get_random_ltd_enabled, get_random_ltd_params)


def get_curriculum_learning(param_dict):
    block = _curriculum_when_enabled(param_dict)
    assert not block["enabled"] or CURRICULUM_LEARNING_METRICS in block, \
        f"'{_SAMPLING}.{CURRICULUM_LEARNING}' is on, and has no '{CURRICULUM_LEARNING_METRICS}'"
    return block


def get_dynamic_batching(param_dict):
    block = f"{_SAMPLING}.{DYNAMIC_BATCHING}"
    rows = dict(rows_in(block))
    given = {key: row["default"] for key, row in rows.items() if row["default"] is not None} | param_dict.get(DYNAMIC_BATCHING, {})
    given = {key: int(value) if rows.get(key, {}).get("type") == "int" and value is not None else value for key, value in given.items()}
    assert not given["enabled"] or DYNAMIC_BATCHING_MAX_TOKENS in given, f"'{block}' is on, and has no '{DYNAMIC_BATCHING_MAX_TOKENS}'"
    return {DYNAMIC_BATCHING_MAX_BATCH_SIZE: None, **given}


def get_data_routing(param_dict):
    return {"enabled": get_data_routing_enabled(param_dict), RANDOM_LTD: get_random_ltd(param_dict.get(DATA_ROUTING, {}))}


def get_random_ltd(param_dict):
    return {RANDOM_LTD_LAYER_TOKEN_LR_SCHEDULE: {"enabled": False}, **_random_ltd_when_enabled(param_dict)}
