"""TiledLinear: a linear layer as tiles, of which stage 3 gathers one at a time."""

from tessera.tiled_linear import TiledLinear, TiledLinearReturnBias  # noqa: F401
