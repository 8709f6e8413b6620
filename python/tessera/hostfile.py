"""Machines and their slots: the hostfile, filters on it, and the text that carries the choice to every machine.

A slot is a place for one rank: a device's index, or just a number on machines without devices.

    hostfile    one machine per line, "worker-0 slots=4"; # begins a comment
    filter      "worker-0@worker-1:0,2"      all slots of worker-0, and two of worker-1
"""

import base64
import json
import re

from tessera.launch_error import refused

_LINE = re.compile(r"(\S+)\s+slots=([0-9]{1,5})(?=\s|#|\Z)")  # five digits: no list of slots that takes all memory
_ADVICE = "write one machine per line, like 'worker-0 slots=4'"


def parse_hostfile(lines, name="the hostfile"):
    """{host: number of slots}, in the file's order. `name`: what messages call the file."""
    found = {}
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if not match:
            raise refused(f"line {number} of the hostfile is not a machine: {line!r}", f"{name}:{number}", _ADVICE)
        if match[1] in found:
            raise refused(f"line {number} of the hostfile names {match[1]} again", f"{name}:{number}",
                          "keep one line for each machine")
        if int(match[2]) == 0:
            raise refused(f"line {number} of the hostfile gives {match[1]} no slots", f"{name}:{number}",
                          "give it at least one, or remove the line")
        found[match[1]] = int(match[2])
    if not found:
        raise refused("the hostfile names no machines", name, _ADVICE)
    return found


def parse_node(text):
    """"worker-1:0,2" -> ("worker-1", [0, 2]); no slots stand for all."""
    host, *slots = text.split(":")
    try:
        if len(slots) > 1 or not host:
            raise ValueError
        return host, [int(slot) for slot in slots[0].split(",")] if slots else []
    except ValueError:
        raise refused(f"'{text}' is not a machine filter", "--include or --exclude",
                      "write it like worker-0 or worker-0:0,2, with @ between several") from None


def parse_nodes(text):
    """{host: slots} of a whole filter; a machine that comes twice has the slots of both."""
    found = {}
    for node in text.split("@"):
        host, slots = parse_node(node)
        known = found.get(host)
        everything = known == [] or not slots
        found[host] = [] if everything else sorted({*(known or []), *slots})
    return found


def filter_slots(slots_of, include="", exclude=""):
    """What is left of {host: slots}; hosts stay in order, and a host without slots goes."""
    if include and exclude:
        raise refused("--include and --exclude are both given", "the command line", "keep one of them")
    wanted = parse_nodes(include or exclude) if include or exclude else {}
    option = "--include" if include else "--exclude"
    for host, slots in wanted.items():
        if host not in slots_of:
            raise refused(f"'{host}' is not in the list of machines", option, f"use one of {', '.join(slots_of)}")
        for slot in slots:
            if slot not in slots_of[host]:
                raise refused(f"{host} has no slot {slot}", option, f"it has {', '.join(map(str, slots_of[host]))}")
    if include:
        left = {host: wanted[host] or list(slots_of[host]) for host in slots_of if host in wanted}
    else:
        left = {host: [slot for slot in slots if host not in wanted or (wanted[host] and slot not in wanted[host])]
                for host, slots in slots_of.items()}
    return {host: slots for host, slots in left.items() if slots}


def encode_slots(slots_of):
    """The text for --world_info."""
    return base64.urlsafe_b64encode(json.dumps(slots_of).encode("utf-8")).decode("utf-8")


def decode_slots(text):
    """{host: slots}; a count of slots becomes the list of them."""
    try:
        found = dict(json.loads(base64.urlsafe_b64decode(text)))
    except (ValueError, TypeError):
        raise refused("--world_info was not written by the deepspeed launcher", "the command line",
                      "start the program with deepspeed") from None
    return {host: list(range(slots)) if isinstance(slots, int) else slots for host, slots in found.items()}
