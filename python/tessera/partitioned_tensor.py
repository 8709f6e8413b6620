"""A tensor that the ranks of a group hold in equal parts of its flat form, and can put together again.

    part = PartitionedTensor(whole, group)      every rank gives the same tensor, and keeps its part of a copy
    part.full()                                 the whole tensor, on every rank: a collective

`to_meta()` describes a part as integers, so that it can be sent beside the part:
[dimensions, size of each, ranks, this rank, where each rank's part begins, elements].
"""

import torch
import torch.distributed as dist

from tessera._core import uniform_bounds


class PartitionedTensor:
    def __init__(self, tensor, group, partition_meta=None):
        self.group = group
        self.num_parts = dist.get_world_size(group=group)
        self.rank = dist.get_rank(group=group)
        self.orig_size, self.orig_device = list(tensor.size()), tensor.device
        self.partition = uniform_bounds(tensor.numel(), self.num_parts)
        begin, end = self.partition[self.rank:self.rank + 2]
        self.local_data = tensor.detach().contiguous().view(-1)[begin:end].clone()

    @classmethod
    def from_meta(cls, meta, local_part, group, device="cpu"):
        """A part that came from another rank."""
        numbers = meta.tolist()
        dimensions = numbers[0]
        made = cls.__new__(cls)
        made.group, made.orig_device = group, device
        made.orig_size = numbers[1:1 + dimensions]
        made.num_parts, made.rank, *made.partition = numbers[1 + dimensions:]
        assert made.num_parts == dist.get_world_size(group=group), (
            f"the tensor has {made.num_parts} parts, but the group has {dist.get_world_size(group=group)} ranks")
        made.local_data = local_part.detach()
        return made

    def to_meta(self):
        return torch.tensor([len(self.orig_size), *self.orig_size, self.num_parts, self.rank, *self.partition],
                            dtype=torch.long, device=self.orig_device)

    def data(self):
        return self.local_data

    def local_size(self):
        return self.local_data.size()

    def full_size(self):
        return self.orig_size

    def full(self, device=None):
        """Parts are padded to the longest on the way, since they need not be of one length."""
        lengths = [end - begin for begin, end in zip(self.partition, self.partition[1:])]
        longest = max(lengths)
        mine = self.local_data.new_zeros(longest)
        mine[:self.local_data.numel()] = self.local_data
        gathered = [torch.empty_like(mine) for _ in lengths]
        dist.all_gather(gathered, mine, group=self.group)
        whole = torch.cat([part[:length] for part, length in zip(gathered, lengths)]).view(self.orig_size)
        return whole.to(device if device is not None else self.orig_device)
