"""Finds which configuration a client means; config_text reads it."""

import os


def place_of(source):
    """What messages call it."""
    return source if isinstance(source, str) and os.path.exists(source) else "the config argument"


def chosen_source(args, config, config_params):
    """The one of initialize()'s three ways to name a configuration that was used."""
    if config is None:
        config = config_params
    by_name = {name: getattr(args, name, None) for name in ("deepspeed_config", "deepscale_config")}
    if all(by_name.values()):
        raise AssertionError("give the configuration once: --deepscale_config is the old name of --deepspeed_config")
    named = by_name["deepspeed_config"] or by_name["deepscale_config"]
    if named is not None and config is not None:
        raise AssertionError("give the configuration only once: as the config argument or as --deepspeed_config")
    if config is None:
        config = named
    if config is None:
        raise AssertionError("no configuration: pass config=<dict or path> to initialize, or --deepspeed_config")
    return config
