#!/usr/bin/env python3
"""A link with delay and loss, for kernels without tc's netem: a process that passes frames from one interface to another and back.

    wire.py pass A B SECONDS SHARE     all that arrives at A leaves B, and the other way round, later by that, less that share of it
    wire.py plain INTERFACE            frames with whole checksums, no larger than the link's: what a wire between two can take
"""

import array
import fcntl
import heapq
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

LARGEST_FRAME = 65536
ALL_PROTOCOLS = 3
BUFFER_BYTES = 4 << 20
SIOCETHTOOL = 0x8946
OFFLOADS_TO_SET = (0x17, 0x1f, 0x24)  # ETHTOOL_STXCSUM, _STSO, _SGSO


class Wire:
    """Between a switch and a host's port, which it takes off the bridge."""

    def __init__(self, switch, host, delay, loss):
        quick = {"check": True, "timeout": 30}
        self.near, self.far = f"near-{host.name}", f"far-{host.name}"
        self.switch = switch
        subprocess.run(switch.words("ip", "link", "add", self.near, "type", "veth", "peer", "name", self.far), **quick)
        subprocess.run(switch.words("ip", "link", "set", host.port, "nomaster"), **quick)
        subprocess.run(switch.words("ip", "link", "set", self.near, "up"), **quick)
        switch.connect(self.far)
        command = [sys.executable, Path(__file__).resolve(), "pass", host.port, self.near, seconds_of(delay), share_of(loss)]
        self.process = subprocess.Popen(switch.words(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        start_new_session=True)
        assert self.process.stdout.readline() == "ready\n"

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)
        subprocess.run(self.switch.words("ip", "link", "delete", self.near), check=True, timeout=30)


def make_plain(host, interface):
    subprocess.run(host.words(sys.executable, Path(__file__).resolve(), "plain", interface), check=True, timeout=30)


def seconds_of(delay):
    return float(delay.removesuffix("ms")) / 1000 if delay else 0


def share_of(loss):
    return float(loss.removesuffix("%")) / 100 if loss else 0


def opened(interface):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    end.bind((interface, 0))
    return end


def pass_frames(first, second, seconds, share):
    """Until standard input ends."""
    ends = [opened(first), opened(second)]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    draw = random.Random(20)
    waiting, number = [], 0  # (when it leaves, a number that keeps the order, where, frame)
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, end, frame = heapq.heappop(waiting)
            try:
                end.send(frame)
            except OSError:
                pass  # the link is down: frames get lost
        readable, _, _ = select.select([*ends, sys.stdin], [], [], max(0, waiting[0][0] - now) if waiting else None)
        for end in readable:
            if end is sys.stdin:
                return
            try:
                frame, (_, _, kind, *_) = end.recvfrom(LARGEST_FRAME)
            except OSError:
                continue
            if kind == socket.PACKET_OUTGOING or draw.random() < share:
                continue
            number += 1
            heapq.heappush(waiting, (time.monotonic() + seconds, number, other[end], frame))


def send_plain_frames(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for offload in OFFLOADS_TO_SET:
            value = array.array("B", struct.pack("II", offload, 0))
            address, _ = value.buffer_info()
            fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sP", interface.encode(), address) + bytes(16))


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        send_plain_frames(sys.argv[2])
    else:
        pass_frames(sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
