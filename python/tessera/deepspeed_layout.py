"""How DeepSpeed cuts flat buffers over ranks, for those who write its files; import_deepspeed.py has it in words.

A rank's part is a list of pieces (name, first, count): elements [first, first + count) of that parameter, flattened; as many
zeros where the name is None. `sizes`: {name: elements} of a group, in its order.
"""

import torch


def part_of_group(sizes, ranks, rank):
    """Stages 1 and 2, with the padding at the end, which makes each rank's part a multiple of two."""
    part = -(-sum(sizes.values()) // (2 * ranks)) * 2
    pieces, begin = [], 0
    for name, size in sizes.items():
        first, last = max(rank * part, begin), min((rank + 1) * part, begin + size)
        if first < last:
            pieces.append((name, first - begin, last - first))
        begin += size
    return _padded(pieces, part)


def part_of_parameters(sizes, ranks, rank):
    """Stage 3."""
    pieces = []
    for name, size in sizes.items():
        part = -(-size // ranks)
        first = min(rank * part, size)
        count = min(part, size - first)
        pieces += _padded([(name, first, count)] if count else [], part)
    return pieces


def _padded(pieces, length):
    zeros = length - sum(count for _, _, count in pieces)
    return [*pieces, (None, 0, zeros)] if zeros else pieces


def sub_groups(sizes, ranks, most):
    """Stage 3: the group in runs of parameters; each ends where a rank has `most` elements of it or more."""
    found, elements = [{}], 0
    for name, size in sizes.items():
        if elements >= most:
            found.append({})
            elements = 0
        found[-1][name] = size
        elements += -(-size // ranks)
    return found


def without_padding(pieces):
    return [piece for piece in pieces if piece[0] is not None]


def length_of(pieces):
    return sum(count for _, _, count in pieces)


def filled(pieces, kind, checkpoint):
    """The fp32 values of a checkpoint of Tessera; zeros for what keeps no values of that kind."""
    buffer = torch.zeros(length_of(pieces), dtype=torch.float32)
    at = 0
    for name, first, count in pieces:
        if name is not None and kind in checkpoint.tensors[name]["kinds"]:
            checkpoint.read(name, kind, first, buffer[at:at + count])
        at += count
    return buffer
