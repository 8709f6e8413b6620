"""Names of environment variables and defaults of process groups that all of the package shares."""

import os
from datetime import timedelta

TORCH_DISTRIBUTED_DEFAULT_PORT = 29500

LOCAL_RANK = "LOCAL_RANK"
CROSS_RANK = "CROSS_RANK"
CROSS_SIZE = "CROSS_SIZE"

INFERENCE_GENERIC_MODE = "generic"
INFERENCE_SPECIALIZED_MODE = "specialized"

default_pg_timeout = timedelta(minutes=int(os.getenv("DEEPSPEED_TIMEOUT", "10")))
