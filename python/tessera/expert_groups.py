"""Which ranks hold the same part of a mixture of experts. Arithmetic only.

The world is cut into `pipeline` blocks of consecutive ranks. Inside a block, every `tensor`-th rank belongs to one
data-parallel group; that group is cut into groups of `expert` ranks, each of which holds all experts once. Ranks at the
same place of those hold the same experts, and average their gradients.
"""


def expert_parallel_ranks(world_size, tensor, expert, pipeline=1, data_before_expert=False):
    """(groups that hold all experts, groups that hold the same experts), lists of ranks. The ranks of a group of the
    first kind lie next to each other in the data-parallel group; with data_before_expert, those of the second do."""
    block = world_size // pipeline
    data = block // tensor
    for whole, part, what in ((world_size, pipeline, "pipeline stages"), (block, tensor, "tensor-parallel ranks"),
                              (data, expert, "expert-parallel ranks")):
        if whole % part:
            raise AssertionError(f"{whole} ranks cannot be divided among {part} {what}")

    holds_all, holds_same = [], []
    for start in range(0, world_size, block):
        for offset in range(tensor):
            ranks = list(range(start + offset, start + block, tensor))
            near = data // expert if data_before_expert else expert
            rows = [ranks[at:at + near] for at in range(0, data, near)]
            columns = [list(column) for column in zip(*rows)]
            holds_all += columns if data_before_expert else rows
            holds_same += rows if data_before_expert else columns
    return holds_all, holds_same
