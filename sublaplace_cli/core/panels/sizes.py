"""How much is computed at a time: constants of a kind of device, so that the bits of a result do not depend on how much
memory is free, nor on how many processes share the work."""

from dataclasses import dataclass

import torch

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class GramSizes:
    """Of a Gram matrix."""

    strip: int  # rows that are computed at a time, from the diagonal on
    few_rows: int  # up to so many, strips are half as wide, for less work below the diagonal
    enough_strips: int  # with many rows
    widest_strip: int
    tile_bytes: int  # of a tile of rows, which is read once per tile of the other side


@dataclass(frozen=True)
class LayerSizes:
    """Of a layer that is stored as factors."""

    written_columns: int  # of a linear layer with positions that are written out at a time
    least_units: int  # output units of that layer; fewer make products slow
    dense_bytes: int  # of the rows that are written out at a time, or of the float64 copies of their factors
    picked_columns: int  # of a linear layer that are computed at a time
    vectors: int  # that are multiplied by the rows of a linear layer at a time


@dataclass(frozen=True)
class Sizes:
    """Large enough for products to run at full speed, small enough for the cache or the memory of the device."""

    panel: int  # columns of a block that are turned into float64 at a time
    row_tile_bytes: int  # of a tile of rows of which something is added up
    block_tile_bytes: int  # the same for rows of one block
    weighted_rows: int  # of a matrix that are weighted at a time
    gram: GramSizes
    layer: LayerSizes


# A core's cache holds a strip and its part of a panel; new memory for larger pieces costs as much as their product.
CPU = Sizes(
    panel=2048,
    row_tile_bytes=256 * MIB,
    block_tile_bytes=32 * MIB,
    weighted_rows=1024,
    gram=GramSizes(strip=128, few_rows=256, enough_strips=32, widest_strip=512, tile_bytes=GIB),
    layer=LayerSizes(2**14, least_units=32, dense_bytes=64 * MIB, picked_columns=64, vectors=16),
)
# A GPU needs few launches, each with work for all its processors.
CUDA = Sizes(
    panel=2**16,
    row_tile_bytes=2 * GIB,
    block_tile_bytes=GIB,
    weighted_rows=2**14,
    gram=GramSizes(strip=1024, few_rows=256, enough_strips=8, widest_strip=4096, tile_bytes=4 * GIB),
    layer=LayerSizes(2**17, least_units=64, dense_bytes=GIB, picked_columns=4096, vectors=128),
)


def sizes_of(device: torch.device) -> Sizes:
    return CUDA if device.type == "cuda" else CPU
