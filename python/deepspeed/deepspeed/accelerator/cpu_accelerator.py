"""The CPU as the accelerator: one device for each process, no streams, and the process's own memory as its memory."""

import contextlib
import os
from pathlib import Path

import torch

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
from tessera import _core


def _numa_nodes():
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1


def _kib_of(field):
    """A line of /proc/self/status in bytes: VmRSS is what the process holds, VmHWM the most it ever held."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class CPU_Accelerator(DeepSpeedAccelerator):
    """Needs no set-up. device_count() is LOCAL_SIZE, which launchers set, or else the number of NUMA nodes."""

    _name = "cpu"
    _communication_backend_name = "gloo"
    Stream = None
    Event = None

    def device_name(self, device_index=None):
        return self._name

    def current_device(self):
        return int(os.environ.get("LOCAL_RANK", 0))

    def current_device_name(self):
        return self._name

    def device_count(self):
        return int(os.environ.get("LOCAL_SIZE", 0)) or _numa_nodes()

    def set_device(self, device_index):
        return None

    def device(self, device_index=None):
        return contextlib.nullcontext()

    def is_available(self):
        return True

    def synchronize(self, device_index=None):
        return None

    def is_synchronized_device(self):
        return True

    def supported_dtypes(self):
        half = [torch.float16] if torch.ops.mkldnn._is_mkldnn_fp16_supported() else []
        return [torch.float32, torch.bfloat16] + half

    def amp(self):
        return torch.cpu.amp

    # Streams

    def stream(self, stream):
        return contextlib.nullcontext()

    def current_stream(self, device_index=None):
        return None

    def default_stream(self, device_index=None):
        return None

    # Random numbers

    def random(self):
        return torch.random

    def set_rng_state(self, new_state, device_index=None):
        torch.set_rng_state(new_state)

    def get_rng_state(self, device_index=None):
        return torch.get_rng_state()

    def manual_seed(self, seed):
        return torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        return torch.manual_seed(seed)

    def initial_seed(self):
        return torch.initial_seed()

    def default_generator(self, device_index):
        return torch.default_generator

    # Memory

    def empty_cache(self):
        _core.release_free_cpu_memory()

    def get_rss(self):
        return _kib_of("VmRSS")

    def reset_rss(self):
        return self.get_rss()

    def memory_allocated(self, device_index=None):
        return _kib_of("VmRSS")

    def max_memory_allocated(self, device_index=None):
        return _kib_of("VmHWM")

    memory_reserved = memory_cached = memory_allocated
    max_memory_reserved = max_memory_cached = max_memory_allocated

    def reset_max_memory_allocated(self, device_index=None):
        return None

    reset_max_memory_cached = reset_peak_memory_stats = reset_max_memory_allocated

    def memory_stats(self, device_index=None):
        return {"allocated_bytes.all.current": self.memory_allocated(),
                "allocated_bytes.all.peak": self.max_memory_allocated()}

    def total_memory(self, device_index=None):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def available_memory(self, device_index=None):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
