"""What a reduction does to the values of the ranks."""

from torch.distributed import ReduceOp  # noqa: F401
