"""Errors that belong to no single part."""


class DeprecatedException(Exception):
    """A call that has been replaced; the message names its successor."""
