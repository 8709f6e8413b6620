"""The configuration as clients hand it over."""

import base64
import binascii
import os

from tessera import _core


def load_config(source):
    """A ds_config as a dict: from a dict (itself), the path of a file (comments are fine), or base64 of such a text."""
    if isinstance(source, dict):
        return source
    source = os.fspath(source)
    if os.path.exists(source):
        with open(source, encoding="utf-8") as file:
            return _core.parse_json(file.read(), source)
    try:
        return _core.parse_json(base64.urlsafe_b64decode(source).decode(), "the config argument")
    except (binascii.Error, UnicodeDecodeError, _core.ConfigError):
        raise ValueError(f"the configuration '{source}' is neither the path of a file nor base64 of JSON") from None


def place_of(source):
    """What messages call it."""
    return source if isinstance(source, str) and os.path.exists(source) else "the config argument"


def chosen_source(args, config, config_params):
    """The one of initialize()'s three ways to name a configuration that was used."""
    if config is None:
        config = config_params
    named = getattr(args, "deepspeed_config", None) or getattr(args, "deepscale_config", None)
    if named is not None and config is not None:
        raise AssertionError("give the configuration once: as the argument config, or as --deepspeed_config")
    if config is None:
        config = named
    if config is None:
        raise AssertionError("no configuration: give config=<dict or path> to initialize, or --deepspeed_config")
    return config
