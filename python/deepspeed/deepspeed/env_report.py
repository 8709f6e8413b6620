"""The command `ds_report`: what this machine has that Tessera can use."""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys

import torch

from deepspeed import version
from deepspeed import _names
from deepspeed.accelerator import get_accelerator
from tessera import _core
from tessera.comm_log import readable_bytes as human_readable_size

_names.serve(__name__)

GREEN, RED, YELLOW, END = "\033[92m", "\033[91m", "\033[93m", "\033[0m"
OKAY = okay = f"{GREEN}[OKAY]{END}"
WARNING = warning = f"{YELLOW}[WARNING]{END}"
FAIL = f"{RED}[FAIL]{END}"

_PACKAGES = ("transformers", "accelerate", "peft", "trl", "safetensors", "pydantic")


def get_shm_size():
    """(bytes of /dev/shm, what is wrong with it or None)."""
    found = {name: (number, warning) for topic, name, _, number, warning in _core.environment_facts() if topic == "/dev/shm"}
    return found["size"][0], next((warning for _, warning in found.values() if warning), None)


def op_report(verbose=True):
    """What is compiled: the engine."""
    core = importlib.util.find_spec("tessera._core")
    print(f"engine (tessera._core) {'.' * 30} {OKAY if core else FAIL}"
          f"{'' if core else ' not built: pip install ./python'}")


def debug_report():
    device = get_accelerator()
    rows = [
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("torch", f"{torch.__version__} ({os.path.dirname(torch.__file__)})"),
        ("deepspeed", f"{version} ({os.path.dirname(__file__)})"),
        ("accelerator", f"{device.device_name()}, {device.device_count()} device{'' if device.device_count() == 1 else 's'}, "
                        f"{human_readable_size(device.total_memory())}"),
        ("dtypes", ", ".join(str(dtype).removeprefix("torch.") for dtype in device.supported_dtypes())),
        ("communication", device.communication_backend_name()),
        ("CUDA", torch.version.cuda or "none"),
    ]
    rows += [(name, _version_of(name)) for name in _PACKAGES]
    rows += [(f"launcher {name}", "found" if shutil.which(program) else "not found")
             for name, program in (("pdsh", "pdsh"), ("slurm", "srun"), ("mpi", "mpirun"))]
    facts = _core.environment_facts()
    rows += [(f"{topic}: {name}", value) for topic, name, value, _, _ in facts]
    for name, value in rows:
        print(f"{name} {'.' * (40 - len(name))} {value}")
    for topic, name, _, _, problem in facts:
        if problem:
            print(f"{WARNING} {topic}, {name}: {problem}")


def _version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def parse_arguments():
    parser = argparse.ArgumentParser(prog="ds_report", description="Show what this machine has that Tessera can use")
    parser.add_argument("--hide_operator_status", action="store_true", help="Leave out the compiled parts")
    parser.add_argument("--hide_errors_and_warnings", action="store_true", help="accepted; has no effect")
    return parser.parse_args()


def main(hide_operator_status=False, hide_errors_and_warnings=False):
    if not hide_operator_status:
        op_report()
    debug_report()


def cli_main():
    args = parse_arguments()
    main(args.hide_operator_status, args.hide_errors_and_warnings)


if __name__ == "__main__":
    cli_main()
