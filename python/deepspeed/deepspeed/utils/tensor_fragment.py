"""What lies in the files of a rank's optimizer, and one parameter's training state."""

from dataclasses import dataclass

from deepspeed import _names

_names.serve(__name__)


@dataclass
class fragment_address:
    """Where a parameter lies in a rank's part of a flat buffer, in elements. Programs load files with pickle that hold them."""
    numel: int
    start: int
