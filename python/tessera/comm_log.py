"""What each collective cost: times and bandwidths by operation and message size.

Bandwidths are in Gbit/s. With n ranks, S bytes in the message and t seconds,

  algorithm bandwidth    S / t, where an all-reduce counts its message twice: it is sent and received
  bus bandwidth          S / t times what each link carries: 2 (n - 1) / n in an all-reduce, (n - 1) / n in a gather,
                         a scatter and an all-to-all, 1 in all others
"""

_GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "reduce_scatter", "reduce_scatter_tensor")
_EXCHANGES = ("all_to_all", "all_to_all_single")
_REDUCES = ("all_reduce", "all_reduce_coalesced", "inference_all_reduce")


def bandwidths(operation, message_bytes, milliseconds, world_size):
    """(algorithm, bus) bandwidth in Gbit/s; a gather's message is that of one rank."""
    bits = 8 * message_bytes / 1e9
    seconds = milliseconds / 1e3
    if seconds <= 0:
        return 0.0, 0.0
    links = (world_size - 1) / world_size
    if operation in _REDUCES:
        return 2 * bits / seconds, 2 * links * bits / seconds
    if operation in _GATHERS:
        whole = bits * world_size
        return whole / seconds, links * whole / seconds
    if operation in _EXCHANGES:
        return bits / seconds, links * bits / seconds
    return bits / seconds, bits / seconds


def readable_bytes(count):
    """1500 -> '1.46 KB'."""
    if count == 0:
        return "0B"
    units = ("B", "KB", "MB", "GB", "TB", "PB")
    power = 0
    while count >= 1024 and power < len(units) - 1:
        count /= 1024
        power += 1
    return f"{round(count, 2)} {units[power]}"


def trimmed_mean(values, share):
    """The mean without the smallest and largest values, a fraction `share` of each; 0 for no values."""
    if not 0 <= share <= 1:
        raise ValueError(f"the share to leave out is {share}; it has to be between 0 and 1")
    count = len(values)
    if count == 0:
        return 0
    left_out = int(count * share)
    kept = sorted(values)[left_out:count - left_out] or sorted(values)
    return sum(kept) / len(kept)
