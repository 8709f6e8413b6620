"""What the launcher asks of the machine it runs on: its names, its devices, whether a port is free."""

import errno
import os
import socket

from tessera import _launch

_DRIVER = "/proc/driver/nvidia/gpus"


def is_this_machine(host):
    """Whether a name of a hostfile means the machine that asks."""
    return _launch.is_this_host(host)


def device_count_of_driver():
    """NVIDIA devices of this machine, without loading torch; 0 where there is no driver."""
    try:
        return len(os.listdir(_DRIVER))
    except OSError:
        return 0


def port_is_taken(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # left over from a run that has ended: free
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
