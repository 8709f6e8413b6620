"""A ds_config as a dict, from whatever a program hands over: a dict, a file, or base64 text. Files may be JSON or Hjson:
tessera/config/hjson.h has the grammar."""

import base64
import binascii
import os

import torch  # noqa: F401  its libraries come before ours

from tessera import _core


def read_config(source):
    """The config that `source` means. A str is a path if there is such a file, otherwise base64 of the text."""
    if isinstance(source, dict):
        return source
    if isinstance(source, (str, os.PathLike)) and os.path.exists(source):
        with open(source, "rb") as file:
            return parse_config(file.read(), os.fspath(source))
    if isinstance(source, str):
        try:
            return parse_config(base64.urlsafe_b64decode(source), "the base64 text")
        except (binascii.Error, _core.ConfigError):
            raise ValueError(f"there is no ds_config at {source!r}, and it is not base64-encoded JSON either; give the path of an existing file, or a dict") from None
    raise ValueError(f"a ds_config must be a dict or the path of a JSON file, not {type(source).__name__}")


def parse_config(text, name="the config"):
    """`text`: a str, or the bytes of a file."""
    found = _core.parse_hjson(text, name)
    if not isinstance(found, dict):
        raise ValueError(f"{name} holds {type(found).__name__}; a ds_config must be an object: {{...}}")
    return found
