"""What every accelerator offers, and what is the same on all of them."""

import abc
import contextlib
import functools
import importlib

import torch


class DeepSpeedAccelerator(abc.ABC):
    """One kind of device. `_name` is torch's word for it; methods that take a device_index mean the current device when
    it is None."""

    _name = None
    _communication_backend_name = None
    _compile_backend = "inductor"
    supports_nvtx_domain = False

    # The device

    def device_name(self, device_index=None):
        return self._name if device_index is None else f"{self._name}:{device_index}"

    @abc.abstractmethod
    def current_device(self):
        """The index of the device that this process uses."""

    @abc.abstractmethod
    def current_device_name(self):
        ...

    @abc.abstractmethod
    def device_count(self):
        ...

    @abc.abstractmethod
    def set_device(self, device_index):
        ...

    @abc.abstractmethod
    def is_available(self):
        ...

    @abc.abstractmethod
    def synchronize(self, device_index=None):
        ...

    def on_accelerator(self, tensor):
        return tensor.device.type == self._name

    def communication_backend_name(self):
        return self._communication_backend_name

    # How it runs

    def is_synchronized_device(self):
        return False

    def use_host_timers(self):
        return self.is_synchronized_device()

    def resolves_data_dependency(self):
        return self.is_synchronized_device()

    def handles_memory_backpressure(self):
        return self.is_synchronized_device()

    def is_triton_supported(self):
        return False

    def prefer_triton_grouped_mm(self):
        return False

    def get_compile_backend(self):
        return self._compile_backend

    def set_compile_backend(self, backend):
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise ValueError(f"{backend!r} is not a backend of torch.compile on this machine; use one of {known}")
        self._compile_backend = backend

    def lazy_call(self, callback):
        return callback()

    # Which dtypes

    def is_bf16_supported(self):
        return torch.bfloat16 in self.supported_dtypes()

    def is_fp16_supported(self):
        return torch.float16 in self.supported_dtypes()

    def is_fp64_supported(self):
        return True

    @abc.abstractmethod
    def supported_dtypes(self):
        ...

    def _tensor_of(self, dtype):
        return functools.partial(torch.tensor, dtype=dtype, device=self._name)

    BFloat16Tensor = property(lambda self: self._tensor_of(torch.bfloat16))
    ByteTensor = property(lambda self: self._tensor_of(torch.uint8))
    DoubleTensor = property(lambda self: self._tensor_of(torch.float64))
    FloatTensor = property(lambda self: self._tensor_of(torch.float32))
    HalfTensor = property(lambda self: self._tensor_of(torch.float16))
    IntTensor = property(lambda self: self._tensor_of(torch.int32))
    LongTensor = property(lambda self: self._tensor_of(torch.int64))

    # Memory of the host that the device can reach directly

    def pin_memory(self, tensor, make_copy=True, match_shape=True):
        return tensor.pin_memory() if torch.cuda.is_available() else tensor

    def pin_empty(self, *size, dtype, device="cpu"):
        if torch.device(device).type != "cpu":
            raise ValueError(f"pinned memory is on the host, not on {device!r}; leave device out")
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return self.pin_memory(torch.empty(shape, dtype=dtype))

    def pin_empty_like(self, tensor, device="cpu", dtype=None):
        return self.pin_empty(tensor.shape, dtype=dtype or tensor.dtype, device=device)

    def unpin_memory(self, tensor):
        """Nothing to do: torch's allocator takes pinned memory back when the tensor goes."""

    def is_pinned(self, tensor):
        return tensor.is_pinned()

    def pin_memory_alignment(self):
        return 1

    # Marks in a profiler's trace

    def range_push(self, msg, domain=None, category=None):
        return None

    def range_pop(self, domain=None):
        return None

    # Launching

    def visible_devices_envs(self):
        return ["CUDA_VISIBLE_DEVICES"]

    def set_visible_devices_envs(self, current_env, local_accelerator_ids):
        for name in self.visible_devices_envs():
            current_env[name] = ",".join(map(str, local_accelerator_ids))

    def export_envs(self):
        """Prefixes of the environment variables that a launcher hands to other machines."""
        return []

    # Compiled parts

    def op_builder_dir(self):
        return "deepspeed.ops.op_builder"

    def get_op_builder(self, class_name):
        """Of an operator that is not there, a builder that cannot load it: programs ask before they know whether they need one."""
        builders = importlib.import_module(self.op_builder_dir())
        return getattr(builders, class_name, builders.NotImplementedBuilder)

    def create_op_builder(self, class_name):
        return self.get_op_builder(class_name)()

    def build_extension(self):
        from torch.utils.cpp_extension import BuildExtension
        return BuildExtension

    # Graphs of kernels, where the device has them

    def create_graph(self):
        return None

    def capture_to_graph(self, graph, pool=None, stream=None):
        return contextlib.nullcontext()

    def replay_graph(self, graph):
        return None

    def is_current_stream_capturing(self):
        return False
