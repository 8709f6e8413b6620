"""Which of torch.distributed's backends the engine takes for ranks on devices. How it uses it: tests/comm/nccl_test.cpp."""

import subprocess
import sys

import pytest
import ranks
import torch
from tessera.world import _nccl_of


class Backend:
    def __init__(self, name):
        self.name = lambda: name


class Group:
    """A process group with these backends, {kind of device: name}."""

    def __init__(self, **names):
        self._device_types = [torch.device(kind) for kind in names]
        self._get_backend = lambda device: Backend(names[device.type])


def test_the_backend_of_devices_is_taken_where_it_is_nccl():
    assert _nccl_of(Group(cpu="gloo", cuda="nccl")).name() == "nccl"
    assert _nccl_of(Group(cuda="nccl")).name() == "nccl"
    assert _nccl_of(Group(cpu="gloo", cuda="gloo")) is None
    assert _nccl_of(Group(cpu="shm")) is None


PROGRAM = """
import sys
import torch.distributed as dist
from tessera.world import _nccl_of
dist.init_process_group(sys.argv[1], store=dist.HashStore(), rank=0, world_size=1)
print(len(dist.group.WORLD._device_types) > 0, _nccl_of(dist.group.WORLD))
"""


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_a_group_of_torch_is_asked_as_it_wants_to_be(backend):
    done = subprocess.run([sys.executable, "-c", PROGRAM, backend], env=ranks.environment(), capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "None"], done.stderr
