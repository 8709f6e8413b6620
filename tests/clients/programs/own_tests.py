"""A client's own tests of DeepSpeed where there is no GPU: those that would be skipped for that run, on two ranks of a CPU, with at most
four minutes each. To be run where the models that they ask a hub for lie under their names.

    own_tests.py REPORT transformers|accelerate TESTS …        REPORT: a file of JUnit's XML
"""

import importlib
import os
import socket
import sys
from pathlib import Path

import pytest

COMMANDS = {"deepspeed": "deepspeed.launcher.runner", "accelerate": "accelerate.commands.accelerate_cli"}
OF_DEVICES = {
    "transformers": ("transformers.testing_utils", ("require_torch_accelerator", "require_torch_multi_accelerator"), {"backend_device_count": lambda _: 2}),
    "accelerate": ("accelerate.test_utils.testing", ("require_non_cpu", "require_multi_device"), {"device_count": 2}),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def put_on_path(folder):
    """The commands that tests start, of this interpreter's packages."""
    folder.mkdir()
    for name, module in COMMANDS.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def main(report, client, tests):
    put_on_path(Path("commands").resolve())
    os.environ.update(RUN_SLOW="1", DS_TEST_PORT=str(free_port()))
    name, conditions, values = OF_DEVICES[client]
    module = importlib.import_module(name)
    for condition in conditions:
        setattr(module, condition, lambda test: test)
    for value in values:
        setattr(module, value, values[value])
    return pytest.main(["-q", "-p", "no:cacheprovider", "--timeout", "240", "--tb", "short", "--junitxml", report, *tests])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
