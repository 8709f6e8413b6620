"""Keys of the ds_config's block aio, and their defaults."""

from deepspeed import _key_table

MIN_SWAPPABLE_BYTES = 1024 * 1024

AIO = "aio"
globals().update(_key_table.constants("AIO_", AIO, " ".join(_key_table.defaults_of(AIO))))
