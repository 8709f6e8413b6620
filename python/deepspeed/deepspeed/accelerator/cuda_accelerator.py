"""CUDA devices as the accelerator: a thin cover over torch.cuda."""

import torch

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator


class CUDA_Accelerator(DeepSpeedAccelerator):
    """Each process uses the device that set_device chose."""

    _name = "cuda"
    _communication_backend_name = "nccl"
    supports_nvtx_domain = True

    Stream = property(lambda self: torch.cuda.Stream)
    Event = property(lambda self: torch.cuda.Event)

    def current_device(self):
        return torch.cuda.current_device()

    def current_device_name(self):
        return f"cuda:{torch.cuda.current_device()}"

    def device_count(self):
        return torch.cuda.device_count()

    def set_device(self, device_index):
        torch.cuda.set_device(device_index)

    def device(self, device_index=None):
        return torch.cuda.device(device_index)

    def is_available(self):
        return torch.cuda.is_available()

    def synchronize(self, device_index=None):
        return torch.cuda.synchronize(device_index)

    def supported_dtypes(self):
        half = [torch.float16] if torch.cuda.get_device_capability()[0] >= 7 else []
        brain = [torch.bfloat16] if torch.cuda.is_bf16_supported() else []
        return [torch.float32] + half + brain

    def is_triton_supported(self):
        return torch.cuda.get_device_capability()[0] >= 8

    def amp(self):
        return torch.cuda.amp

    def export_envs(self):
        return ["NCCL"]

    def lazy_call(self, callback):
        return torch.cuda._lazy_call(callback)

    def range_push(self, msg, domain=None, category=None):
        return torch.cuda.nvtx.range_push(msg)

    def range_pop(self, domain=None):
        return torch.cuda.nvtx.range_pop()

    # Streams

    def stream(self, stream):
        return torch.cuda.stream(stream)

    def current_stream(self, device_index=None):
        return torch.cuda.current_stream(device_index)

    def default_stream(self, device_index=None):
        return torch.cuda.default_stream(device_index)

    # Random numbers

    def random(self):
        return torch.random

    def set_rng_state(self, new_state, device_index=None):
        torch.cuda.set_rng_state(new_state, self._index(device_index))

    def get_rng_state(self, device_index=None):
        return torch.cuda.get_rng_state(self._index(device_index))

    def manual_seed(self, seed):
        return torch.cuda.manual_seed(seed)

    def manual_seed_all(self, seed):
        return torch.cuda.manual_seed_all(seed)

    def initial_seed(self):
        return torch.cuda.initial_seed()

    def default_generator(self, device_index):
        return torch.cuda.default_generators[device_index]

    @staticmethod
    def _index(device_index):
        return "cuda" if device_index is None else device_index

    # Memory

    def empty_cache(self):
        return torch.cuda.empty_cache()

    def memory_allocated(self, device_index=None):
        return torch.cuda.memory_allocated(device_index)

    def max_memory_allocated(self, device_index=None):
        return torch.cuda.max_memory_allocated(device_index)

    def memory_reserved(self, device_index=None):
        return torch.cuda.memory_reserved(device_index)

    def max_memory_reserved(self, device_index=None):
        return torch.cuda.max_memory_reserved(device_index)

    memory_cached = memory_reserved
    max_memory_cached = max_memory_reserved

    def reset_peak_memory_stats(self, device_index=None):
        return torch.cuda.reset_peak_memory_stats(device_index)

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device_index=None):
        return torch.cuda.memory_stats(device_index)

    def total_memory(self, device_index=None):
        return torch.cuda.get_device_properties(device_index or self.current_device()).total_memory

    def available_memory(self, device_index=None):
        return torch.cuda.mem_get_info(device_index)[0]

    # Graphs of kernels

    def create_graph(self):
        return torch.cuda.CUDAGraph()

    def capture_to_graph(self, graph, pool=None, stream=None):
        return torch.cuda.graph(graph, pool, stream)

    def replay_graph(self, graph):
        graph.replay()

    def is_current_stream_capturing(self):
        return torch.cuda.is_current_stream_capturing()
