"""Which ranks hold the same part of a mixture of experts.

The world is a grid: blocks of consecutive ranks for the stages of a pipeline, inside of each every `tensor`-th rank in one
data-parallel group, and that group cut into groups of `expert` ranks, each of which holds all experts once. Ranks at the
same place of those hold the same experts, and average their gradients.
"""

from tessera.topology import RankGrid


def expert_parallel_ranks(world_size, tensor, expert, pipeline=1, data_before_expert=False):
    """(groups that hold all experts, groups that hold the same experts), lists of ranks. The ranks of a group of the
    first kind lie next to each other in the data-parallel group; with data_before_expert, those of the second do."""
    block = world_size // pipeline
    data = block // tensor
    for whole, part, what in ((world_size, pipeline, "pipeline stages"), (block, tensor, "tensor-parallel ranks"),
                              (data, expert, "expert-parallel ranks")):
        if whole % part:
            raise AssertionError(f"{whole} ranks cannot be divided among {part} {what}")

    axes = {"copies": data // expert, "experts": expert}
    inner = reversed(axes.items()) if data_before_expert else axes.items()
    grid = RankGrid(*zip(("pipe", pipeline), *inner, ("tensor", tensor)))

    def groups_along(axis):
        def data_parallel_group(ranks):
            place = grid.get_coord(ranks[0])
            return place.pipe, place.tensor

        return sorted(grid.get_axis_comm_lists(axis), key=data_parallel_group)

    return groups_along("experts"), groups_along("copies")
