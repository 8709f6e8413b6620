"""The ranks of a run as a grid with named axes: pipe, data, model. Who is where is the engine's tessera/layout/mesh_shape.h.

    topology = RankGrid(axes=["pipe", "data"], dims=[2, 3])
    topology.get_rank(pipe=1, data=0) == 3         ranks count up along the last axis first
    topology.get_axis_comm_lists("data") == [[0, 1, 2], [3, 4, 5]]

Immutable after construction.
"""

from collections import namedtuple

import torch  # noqa: F401  its libraries come before ours

from tessera import _core


class RankGrid:
    def __init__(self, axes, dims):
        self.axes, self.dims = axes, dims
        self.ProcessCoord = namedtuple("ProcessCoord", axes)
        mesh = self._mesh()
        self.mapping = {self.ProcessCoord(*(mesh.coordinate(rank, axis) for axis in axes)): rank
                        for rank in range(mesh.ranks)}
        self._places = list(self.mapping)

    def _mesh(self):
        """Not kept: it cannot be copied with a module that has a grid."""
        return _core.MeshShape(list(zip(self.axes, self.dims)))

    def __str__(self):
        return str(self.mapping)

    def world_size(self):
        return len(self.mapping)

    def get_axis_names(self):
        return self.axes

    def get_dim(self, axis):
        """Ranks along the axis; 0 where there is no such axis."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def get_rank(self, **coord_kwargs):
        """The rank at a place, with an index for every axis."""
        if set(coord_kwargs) != set(self.axes):
            raise ValueError(f"get_rank needs one index for each of {', '.join(self.axes)}; "
                             "filter_match finds all ranks of some of them")
        place = self.ProcessCoord(**coord_kwargs)
        assert place in self.mapping, f"{place} is outside {dict(zip(self.axes, self.dims))}"
        return self.mapping[place]

    def get_coord(self, rank):
        if not 0 <= rank < len(self._places):
            raise ValueError(f"rank {rank} is outside this grid of {len(self._places)} ranks")
        return self._places[rank]

    def get_rank_repr(self, rank, omit_axes=("data", "pipe"), inner_sep="_", outer_sep="-"):
        """The rank's place as text for file names: "model_00"."""
        place = self.get_coord(rank)
        return outer_sep.join(f"{axis}{inner_sep}{getattr(place, axis):02d}"
                              for axis in self.axes if axis not in frozenset(omit_axes))

    def get_axis_comm_lists(self, axis):
        """The ranks of each line along the axis; [] where there is no such axis."""
        if axis not in self.axes:
            return []
        mesh = self._mesh()
        return [mesh.members(rank, [axis]) for rank in self.get_axis_list(axis, 0)]

    def filter_match(self, **filter_kwargs):
        """All ranks whose place has these indices, in order."""
        return [rank for place, rank in self.mapping.items()
                if all(getattr(place, axis) == index for axis, index in filter_kwargs.items())]

    def get_axis_list(self, axis, idx):
        """All ranks at one index of the axis."""
        at = self.axes.index(axis)
        return [rank for place, rank in self.mapping.items() if place[at] == idx]


def prime_factors(number):
    """60 -> [2, 2, 3, 5]; [] for 1."""
    if number < 1:
        raise ValueError(f"{number} has no prime factors: it must be at least 1")
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors
