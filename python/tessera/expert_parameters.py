"""Parameters of a mixture's experts: `allreduce` is False, and `group_name` names the ranks that hold the same expert.

An optimizer with sharded state needs experts and all others in param groups of their own, and experts of each group of
ranks in one of their own again.
"""

LARGEST_GROUP = 178956971  # elements; a group's flat buffer stays below what DeepSpeed allocates at once


def is_expert(parameter):
    return getattr(parameter, "allreduce", True) is False


def split(parameters):
    """(the others, experts)."""
    return [p for p in parameters if not is_expert(p)], [p for p in parameters if is_expert(p)]


def split_group(group, largest=LARGEST_GROUP):
    """The group without its experts, and a group of each set of experts, none with more than `largest` elements unless
    one parameter alone has them. Options of the group are kept."""
    others, experts = split(group["params"])
    by_name = {}
    for parameter in experts:
        by_name.setdefault(parameter.group_name, []).append(parameter)
    return {**group, "params": others}, [
        {**group, "name": name, "moe": True, "params": part}
        for name, members in by_name.items() for part in _parts(members, largest)]


def _parts(parameters, largest):
    part, size = [], 0
    for parameter in parameters:
        if part and size + parameter.numel() > largest:
            yield part
            part, size = [], 0
        part.append(parameter)
        size += parameter.numel()
    if part:
        yield part
