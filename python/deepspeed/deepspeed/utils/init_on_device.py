"""OnDevice: build a model on another device, or on none."""

from tessera.on_device import OnDevice  # noqa: F401
