"""Calls whose activations are recomputed in the backward pass, with their inputs kept elsewhere until then.

torch.utils.checkpoint does the recomputation, and saves the call's inputs through autograd's saved-tensor hooks. Hooks
around the call therefore see these inputs, and nothing that the call itself saves:

  keep_on_host     inputs wait in host memory, pinned where there is a device
  keep_parts       each rank of a tensor-parallel group, whose inputs are equal, keeps one part of them

Random numbers are the same in both runs, those of named streams, too.
"""

import contextlib

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tessera.partitioned_tensor import PartitionedTensor

SMALLEST_KEPT_ELSEWHERE = 1024  # elements; below, moving costs more than keeping


def recomputed(function, args, kwargs, streams, keeping):
    """function(*args, **kwargs); `streams` is an RngStreams, `keeping` a list of contexts from below."""
    with contextlib.ExitStack() as contexts:
        for context in keeping:
            contexts.enter_context(context)
        return checkpoint(_WithSameStreams(function, streams), *args, use_reentrant=False, preserve_rng_state=True,
                          **kwargs)


class _WithSameStreams:
    """The function; from its second run on, with the streams as they were at the first."""

    def __init__(self, function, streams):
        self.function, self.streams, self.states = function, streams, None

    def __call__(self, *args, **kwargs):
        if self.states is None:
            self.states = self.streams.get_states()
            return self.function(*args, **kwargs)
        now = self.streams.get_states()
        self.streams.set_states(dict(self.states))
        try:
            return self.function(*args, **kwargs)
        finally:
            self.streams.set_states(now)


def _is_activation(tensor):
    return tensor.is_floating_point() and tensor.numel() >= SMALLEST_KEPT_ELSEWHERE


def keep_on_host():
    def pack(tensor):
        if tensor.device.type == "cpu" or not _is_activation(tensor):
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        return host, tensor.device, torch.cuda.current_stream().record_event()

    def unpack(kept):
        if torch.is_tensor(kept):
            return kept
        host, device, copied = kept
        copied.synchronize()
        return host.to(device, non_blocking=True)

    return saved_tensors_hooks(pack, unpack)


def keep_parts(group):
    """`group`: its ranks run the same calls in the same order, forward and backward."""
    def pack(tensor):
        return PartitionedTensor(tensor, group) if _is_activation(tensor) else tensor

    def unpack(kept):
        return kept if torch.is_tensor(kept) else kept.full()

    return saved_tensors_hooks(pack, unpack)
