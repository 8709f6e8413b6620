"""Names of communication backends, and the keys of the ds_config's block comms_logger."""

from deepspeed import _key_table

NCCL_BACKEND = "nccl"
CCL_BACKEND = "ccl"
MPI_BACKEND = "mpi"
GLOO_BACKEND = "gloo"
SCCL_BACKEND = "sccl"
HCCL_BACKEND = "hccl"

DEFAULT_AML_MASTER_PORT = "54965"
DEFAULT_AML_NCCL_SOCKET_IFNAME = "^docker0,lo"

COMMS_LOGGER = "comms_logger"
globals().update(_key_table.constants("COMMS_LOGGER_", COMMS_LOGGER, "enabled verbose prof_all debug prof_ops"))
