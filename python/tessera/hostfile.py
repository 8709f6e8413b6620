"""Machines and their slots as {host: slots}: tessera/launch's hostfile, filters and world info, by DeepSpeed's types.

A slot is a place for one rank: a device's index, or just a number on machines without devices.
"""

from tessera import _launch


def pairs_of(slots_of):
    """[(host, slots)] of {host: slots or their number}."""
    return [(host, list(range(slots)) if isinstance(slots, int) else list(slots)) for host, slots in slots_of.items()]


def parse_hostfile(lines, name="the hostfile"):
    """{host: number of slots}, in the file's order. `name`: what messages call the file."""
    return {host: len(slots) for host, slots in _launch.parse_hostfile(list(lines), name)}


def parse_node(text):
    """"worker-1:0,2" -> ("worker-1", [0, 2]); no slots stand for all."""
    return _launch.parse_filter_node(text)


def parse_nodes(text):
    """{host: slots} of a whole filter; a machine that comes twice has the slots of both."""
    return dict(_launch.parse_filter(text))


def filter_slots(slots_of, include="", exclude=""):
    """What is left of {host: slots}; hosts stay in order, and a host without slots goes."""
    return dict(_launch.filter_hosts(pairs_of(slots_of), include, exclude))


def encode_slots(slots_of):
    """The text for --world_info."""
    return _launch.encode_world_info(pairs_of(slots_of))


def decode_slots(text):
    """{host: slots}; a count of slots becomes the list of them."""
    return dict(_launch.decode_world_info(text))
