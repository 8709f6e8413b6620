"""Which consecutive items each part gets: the same number of them, or about the same weight. Arithmetic only.

Results are bounds: part p holds the items [bounds[p], bounds[p + 1]). They agree with DeepSpeed's, since they decide
which stage of a pipeline holds a layer, and so what its checkpoints hold.
"""

from itertools import accumulate


def uniform_bounds(item_count, part_count):
    """Parts of the same size; where that does not divide, the first ones have one more."""
    if item_count <= part_count:
        return [min(part, item_count) for part in range(part_count + 1)]
    size, longer = divmod(item_count, part_count)
    return [part * size + min(part, longer) for part in range(part_count + 1)]


def balanced_bounds(weights, part_count):
    """Parts whose heaviest and lightest differ least.

    Dynamic programming over prefixes: of the ways to cut the first i items into p parts, one with the smallest
    difference is kept, and among equals the one whose last part begins latest. Cost: part_count * len(weights)^2.
    """
    count = len(weights)
    if count <= part_count:
        return uniform_bounds(count, part_count)
    sums = [0, *accumulate(weights)]
    kept = [(total, total) for total in sums]  # heaviest and lightest part of each prefix
    begins = []                                # begins[p - 2][i]: where the last of p parts of the first i items begins
    for parts in range(2, part_count + 1):
        extended, begin_of = [None] * (count + 1), [0] * (count + 1)
        for end in range(parts, count + 1):
            for begin in range(parts - 1, end):
                heaviest, lightest = kept[begin]
                weight = sums[end] - sums[begin]
                state = max(heaviest, weight), min(lightest, weight)
                best = extended[end]
                if best is None or state[0] - state[1] <= best[0] - best[1]:
                    extended[end], begin_of[end] = state, begin
        kept = extended
        begins.append(begin_of)
    bounds = [count]
    for begin_of in reversed(begins):
        bounds.append(begin_of[bounds[-1]])
    return [0, *reversed(bounds)]
