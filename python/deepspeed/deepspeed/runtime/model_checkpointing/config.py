"""The ds_config's block checkpoint: how files are written."""

_WRITER_DEFAULTS = {"type": "FAST", "io_buffer_size": 64 * 1024 * 1024, "io_buffer_double": True,
                    "show_statistics": False, "data_parallel": None, "decoupled": False, "io_multiplier": 1}

VALID_VALUES = {
    "tag_validation": ["WARN", "IGNORE", "FAIL"],
    "type": ["MOCK", "PYTHON", "FAST"],
    "data_parallel": ["REPLICA", "SOCKET", "MACHINE"],
}


def get_checkpoint_config(param_dict):
    given = param_dict.get("checkpoint", {})
    return _checked("checkpoint", {
        "tag_validation": _upper(given.get("tag_validation", "WARN")),
        "checkpoint_serialization": given.get("checkpoint_serialization", True),
        "writer": get_checkpoint_writer_config(given),
    })


def get_checkpoint_writer_config(param_dict):
    given = param_dict.get("writer")
    if given is None:
        return None
    writer = {key: given.get(key, default) for key, default in _WRITER_DEFAULTS.items()}
    writer["type"] = _upper(writer["type"])
    writer["data_parallel"] = _upper(writer["data_parallel"])
    return _checked("checkpoint.writer", writer)


def _upper(value):
    return value.upper() if isinstance(value, str) else value


def _checked(block, values):
    for key, valid in VALID_VALUES.items():
        value = values.get(key)
        assert value is None or value in valid, f"{block}.{key} is {value!r}; use one of {', '.join(valid)}"
    return values
