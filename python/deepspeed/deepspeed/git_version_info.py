"""What this build is, and which torch it runs on."""

import torch

from deepspeed import version  # noqa: F401
from deepspeed.accelerator import get_accelerator

git_hash = "unknown"
git_branch = "unknown"
accelerator_name = get_accelerator().device_name()
installed_ops = {}


def _short(version_text):
    return ".".join(version_text.split("+")[0].split(".")[:2])


torch_info = {
    "version": _short(torch.__version__),
    "bf16_support": bool(torch.version.cuda) and torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
    "cuda_version": torch.version.cuda or "0.0",
    "nccl_version": "0.0",
    "hip_version": torch.version.hip or "0.0",
}
if torch.version.cuda and torch.cuda.is_available():
    torch_info["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()[:2]))
