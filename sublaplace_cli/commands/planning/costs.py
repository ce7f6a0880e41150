"""Pieces of work; multiplications of sums over blocks, per row or pair of rows, as the blocks' own code does them."""

import math
from dataclasses import dataclass

from ...core.features.spectra import transform_is_cheaper
from ...core.jacobian.blocks import Block, DenseBlock
from ...core.jacobian.embedding import EmbeddingBlock
from ...core.jacobian.linear import ELEMENTWISE, LinearBlock

GATHERED = 3  # an entry that is read in random order, against one in order


@dataclass(frozen=True)
class Work:
    """One piece: passes over rows, float64 products, numbers that are handled one by one, and bytes on disk."""

    step: str  # as in the seconds of a result
    what: str
    products: float = 0.0  # multiplications
    elements: float = 0.0
    rows: float = 0.0
    split: str = ""  # of the rows, as it is stored
    written: int = 0  # bytes
    undivided: bool = False  # one worker does it alone


def gram_products(block: Block, C: int) -> int:
    """Of a row with another row that has C outputs, in a Gram matrix."""
    own = block.n_outputs
    if isinstance(block, LinearBlock) and not is_written_out(block):
        T, d_in, d_out = block.inputs.shape[1], block.inputs.shape[2], block.deltas.shape[3]
        return T**2 * (d_in + own * C * (d_out + ELEMENTWISE))
    if isinstance(block, EmbeddingBlock):
        return block.tokens.shape[1] * own * C * block.deltas.shape[3]  # at most: rows that share all their entries
    return own * C * block.width


def is_written_out(block: Block) -> bool:
    """Whether a Gram matrix needs the dense Jacobian of a block that holds factors of it."""
    if isinstance(block, LinearBlock):
        T, d_in, d_out = block.inputs.shape[1], block.inputs.shape[2], block.deltas.shape[3]
        return T**2 * (d_in + d_out + ELEMENTWISE) > d_in * d_out
    return not isinstance(block, DenseBlock | EmbeddingBlock)


def written_products(block: Block) -> int:
    """Of one row that is written out: of a linear layer with several positions, a sum over them for every weight."""
    if isinstance(block, LinearBlock) and block.inputs.shape[1] > 1:
        return block.deltas[:1].numel() * block.inputs.shape[2]
    return 0


def square_products(block: Block) -> int:
    """Of one row in the squares of a linear layer, which is written out if it has several positions."""
    if isinstance(block, LinearBlock) and block.inputs.shape[1] == 1:
        return block.width
    return written_products(block)


def square_elements(block: Block) -> int:
    """Numbers of one row that are squared one by one."""
    if isinstance(block, LinearBlock) and block.inputs.shape[1] == 1:
        return block.inputs[:1].numel() + 2 * block.deltas[:1].numel()
    return block.deltas[:1].numel() if isinstance(block, EmbeddingBlock) else block.n_outputs * block.width


def sketch_elements(block: Block, k: int) -> float:
    """Numbers of one row that are handled one by one for its k random sums: transforms, or the row written out."""
    if not isinstance(block, LinearBlock) or not transform_is_cheaper(block, k):
        return GATHERED * block.n_outputs * block.width
    T, C = block.inputs.shape[1], block.n_outputs
    return T * (1 + C) * k * math.log2(max(k, 2)) / 2
