"""A linear layer cut into tiles, each a layer of its own: stage 3 gathers one at a time, so a layer that would not fit
whole can be computed."""

import torch
from torch import nn

from tessera._core import uniform_bounds


class TiledLinear(nn.Module):
    """y = x W^T + b with W cut into out_splits x in_splits tiles, linears[out][in]. `linear_cls` makes a tile.

    input_is_already_split: forward takes the in_splits parts of x. combine_out_splits False: it returns the out_splits
    parts of y. init_linear: a whole layer whose values the tiles begin with.
    """

    def __init__(self, in_features, out_features, bias=True, in_splits=1, out_splits=1, input_is_already_split=False,
                 combine_out_splits=True, linear_cls=nn.Linear, init_linear=None, **kwargs):
        super().__init__()
        for name, splits, features in (("in_splits", in_splits, in_features), ("out_splits", out_splits, out_features)):
            if not 1 <= splits <= features:
                raise RuntimeError(f"{name} is {splits}: use a number from 1 to {features}, the number of features")
        self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
        self.in_splits, self.out_splits = in_splits, out_splits
        self.input_is_already_split, self.combine_out_splits = input_is_already_split, combine_out_splits
        self.in_parts = uniform_bounds(in_features, in_splits)
        self.out_parts = uniform_bounds(out_features, out_splits)
        self.linears = nn.ModuleList(
            nn.ModuleList(linear_cls(self.in_parts[column + 1] - self.in_parts[column],
                                     self.out_parts[row + 1] - self.out_parts[row],
                                     bias=bias and column == in_splits - 1, **kwargs) for column in range(in_splits))
            for row in range(out_splits))
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def forward(self, x):
        parts = x if self.input_is_already_split else torch.split(x, _sizes(self.in_parts), dim=-1)
        outputs = [self._row(row, parts) for row in range(self.out_splits)]
        return self._combine(outputs) if self.combine_out_splits else outputs

    def _row(self, row, parts):
        total = self.linears[row][0](parts[0])
        for column in range(1, self.in_splits):
            total = total + self.linears[row][column](parts[column])
        return total

    def _combine(self, outputs):
        return torch.cat(outputs, dim=-1)

    @torch.no_grad()
    def copy_params_from(self, other):
        """The values of a whole layer, partitioned or not. Collective at stage 3."""
        from tessera.zero import GatheredParameters

        with GatheredParameters([each for each in (other.weight, other.bias) if each is not None]):
            for row in range(self.out_splits):
                rows = slice(self.out_parts[row], self.out_parts[row + 1])
                for column in range(self.in_splits):
                    tile = self.linears[row][column]
                    columns = slice(self.in_parts[column], self.in_parts[column + 1])
                    with GatheredParameters(tile.parameters(), modifier_rank=0):
                        tile.weight.copy_(other.weight[rows, columns])
                        if tile.bias is not None:
                            tile.bias.copy_(other.bias[rows])


class TiledLinearReturnBias(TiledLinear):
    """For layers whose forward returns (product, bias) with the bias not added."""

    def _row(self, row, parts):
        total, bias = self.linears[row][0](parts[0])
        for column in range(1, self.in_splits):
            product, own = self.linears[row][column](parts[column])
            total, bias = total + product, own if own is not None else bias
        return total, bias

    def _combine(self, outputs):
        biases = [bias for _, bias in outputs]
        return super()._combine([product for product, _ in outputs]), None if biases[0] is None else torch.cat(biases)


def _sizes(bounds):
    return [end - begin for begin, end in zip(bounds, bounds[1:])]
