"""A block is the part of a Jacobian that belongs to one layer, with the sums that are computed from it in float64.

Results add up: over chunks of rows for the squares and `pull`, over blocks for Gram matrices and `push`.
`DenseBlock` holds the Jacobian itself; the others (in `linear`, `conv` and `embedding`) hold the factors of their
layer's gradient, and are written out where that is cheaper.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from ..kernels.arithmetic import Arithmetic
from ..panels.products import (
    Prior,
    RowSquares,
    Strips,
    add_products,
    add_upper,
    flat_strips,
    in_metric,
    narrow_strips,
    panel_squares,
)
from ..panels.sizes import Sizes, sizes_of

FLOAT64 = Arithmetic.FLOAT64
Pair = tuple[Tensor, Tensor]
PairOfStrips = tuple[Strips | None, Strips | None]


@dataclass(frozen=True)
class Block(ABC):
    """Rows of the Jacobian for the flat range [start, start + width); by default, results use the dense Jacobian."""

    start: int
    fits_any_cut: ClassVar[bool] = True  # False: only its own `cuts` can be written out
    factors: ClassVar[tuple[str, ...]]  # names of the tensors that define it: rows first, the last (m, C, …)

    @property
    @abstractmethod
    def width(self) -> int: ...
    @property
    @abstractmethod
    def row_bytes(self) -> int: ...  # memory per row while results are computed
    @property
    def work_bytes(self) -> int:
        """The part of it that a Gram matrix needs beside the rows themselves."""
        return self.row_bytes

    @abstractmethod
    def dense(self) -> "DenseBlock": ...

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.width)

    @property
    def device(self) -> torch.device:
        return getattr(self, self.factors[0]).device

    @property
    def sizes(self) -> Sizes:
        return sizes_of(self.device)

    @property
    def n_rows(self) -> int:
        return getattr(self, self.factors[0]).shape[0]

    @property
    def n_outputs(self) -> int:
        return getattr(self, self.factors[-1]).shape[1]

    def dense_pieces(self) -> Iterator["DenseBlock"]:
        """The dense Jacobian a few rows at a time, so that it never exists as a whole."""
        step = max(1, self.sizes.layer.dense_bytes // (8 * self.n_outputs * self.width))
        for start in range(0, self.n_rows, step):
            yield self.rows(start, min(start + step, self.n_rows)).dense()

    @property
    def cuts(self) -> list[slice]:
        """The columns in parts that together are all of them."""
        step = self.sizes.panel
        return [slice(left, min(left + step, self.width)) for left in range(0, self.width, step)]

    def written_out(self, cuts: Iterable[slice]) -> Iterator[Tensor]:
        """J (m·C, columns) float64 of each cut; not to be changed. The next one may overwrite it."""
        yield from self.dense().written_out(cuts)

    def squares(self, W: Tensor | None = None) -> Tensor:
        """Σₙ diag(Jₙᵀ Hₙ Jₙ) over this block's rows (width,); unweighted without W (m, C, C)."""
        done, parts = 0, []
        for piece in self.dense_pieces():
            parts.append(piece.squares(None if W is None else W[done : done + piece.n_rows]))
            done += piece.n_rows
        return torch.stack(parts).sum(0)

    def put_columns(self, local: Tensor, out: Tensor) -> None:
        """Write the columns at these positions within the block into `out` (len(local), m·C), each contiguous."""
        done = 0
        for piece in self.dense_pieces():
            width = piece.n_rows * self.n_outputs
            piece.put_columns(local, out[:, done : done + width])
            done += width

    def add_gram(
        self, other: "Block", prior: Prior, total: Tensor, strips: Strips | None = None, by: Arithmetic = FLOAT64
    ) -> None:
        """total += J V⁻¹ J′ᵀ with the same block of other rows (m·C, m′·C′), where `prior` is the block's part of v.

        With itself, the part below the diagonal does not count. `strips` are the only rows that are computed.
        """
        flat = flat_strips(strips, self.n_rows, self.n_outputs, self.device)
        if other is self:
            for cut, X in zip(self.cuts, self.written_out(self.cuts), strict=True):
                factor, (A,) = in_metric(prior, cut, X)
                add_upper(total, by.rows(A), flat, factor)
            return
        cuts = other.cuts if self.fits_any_cut else self.cuts
        for cut, X, Y in zip(cuts, self.written_out(cuts), other.written_out(cuts), strict=True):
            factor, (A, B) = in_metric(prior, cut, X, Y)
            add_products(total, by.rows(A), by.rows(B), flat, factor)

    def add_grams(
        self,
        beside: "Block",
        prior: Prior,
        products: Pair,
        strips: PairOfStrips,
        by: Arithmetic,
        squares: RowSquares | None = None,
    ) -> Tensor | None:
        """`add_gram` with itself, and of the rows beside it with it: to the last bit, but written out only once.

        Returns the squares of the same rows (width,), if they are asked for and the rows are written out.
        """
        if self.cuts != beside.cuts or self.is_factored(beside, prior):
            self.add_gram(self, prior, products[0], strips[0], by)
            beside.add_gram(self, prior, products[1], strips[1], by)
            return None
        own = flat_strips(strips[0], self.n_rows, self.n_outputs, self.device)
        other = flat_strips(strips[1], beside.n_rows, beside.n_outputs, self.device)
        found: list[Tensor] = []
        for cut, X, Y in zip(self.cuts, self.written_out(self.cuts), beside.written_out(self.cuts), strict=True):
            factor, (A, B) = in_metric(prior, cut, X, Y)
            rows = by.rows(A)
            add_upper(products[0], rows, own, factor)
            add_products(products[1], by.rows(B), rows, other, factor)
            if squares is not None:
                found.append(squares.of(X, self.n_outputs))
        return torch.cat(found) if found else None

    def is_factored(self, other: "Block", prior: Prior) -> bool:
        """Whether some Gram matrix of these two blocks is computed without writing them out."""
        return False

    def own_products(self, prior: Tensor) -> Tensor:
        """Jₙ V⁻¹ Jₙᵀ of each row (m, C, C): on the diagonal, squared norms in the metric V⁻¹."""
        return torch.cat([piece.own_products(prior) for piece in self.dense_pieces()])

    def pull(self, u: Tensor) -> Tensor:
        """Jᵀ u for coefficients u of the rows (m·C, r) → (width, r); the products are in the type of u."""
        return self.dense().pull(u)

    def push(self, x: Tensor) -> Tensor:
        """J x for vectors x of this block's parameters (width, r) → (m·C, r); the products are in the type of x."""
        return torch.cat([piece.push(x) for piece in self.dense_pieces()])

    def expanded(self) -> "Block":
        """The form that is fastest to compute with, which may need more memory."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that define this block, with the rows along the first axis of each."""
        return {name: getattr(self, name) for name in self.factors}

    def with_tensors(self, tensors: Mapping[str, Any]) -> Self:
        return replace(self, **{name: tensors[name] for name in self.factors})

    def rows(self, start: int, stop: int) -> Self:
        return self.with_tensors({name: tensor[start:stop] for name, tensor in self.tensors().items()})


AnyBlock = TypeVar("AnyBlock", bound=Block)


def joined(blocks: Sequence[AnyBlock]) -> AnyBlock:
    """One block for the rows of several."""
    if len(blocks) == 1:
        return blocks[0]
    parts = [block.tensors() for block in blocks]
    return blocks[0].with_tensors({name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def stored_bytes(block: Block) -> int:
    """Bytes per row of the tensors that define the block."""
    return sum(tensor[0].numel() * tensor.element_size() for tensor in block.tensors().values())


@dataclass(frozen=True)
class DenseBlock(Block):
    """The Jacobian itself."""

    values: Tensor  # (m, C, width)
    factors: ClassVar[tuple[str, ...]] = ("values",)

    @property
    def width(self) -> int:
        return self.values.shape[2]

    @cached_property
    def row_bytes(self) -> int:
        return self.values[:1].numel() * self.values.element_size()

    @property
    def work_bytes(self) -> int:
        return 8 * self.n_outputs * min(self.width, self.sizes.panel)

    @property
    def flat(self) -> Tensor:
        return self.values.flatten(0, 1)  # (m·C, width)

    def dense(self) -> "DenseBlock":
        return self

    def squares(self, W: Tensor | None = None) -> Tensor:
        return torch.cat([panel_squares(J, W) for J in self.written_out(self.cuts)])

    def put_columns(self, local: Tensor, out: Tensor) -> None:
        out.copy_(self.flat.index_select(1, local).T)

    def written_out(self, cuts: Iterable[slice]) -> Iterator[Tensor]:
        yield from (self.flat[:, cut].double() for cut in cuts)

    def own_products(self, prior: Tensor) -> Tensor:
        if self.n_outputs == 1:
            parts = [(self.flat[:, cut].double().square() / prior[cut]).sum(1) for cut in self.cuts]
            return torch.stack(parts).sum(0).reshape(-1, 1, 1)
        scaled = (self.values[:, :, cut].double() * prior[cut].rsqrt() for cut in self.cuts)  # (m, C, panel)
        return torch.stack([J @ J.mT for J in scaled]).sum(0)

    def pull(self, u: Tensor) -> Tensor:
        return torch.cat([self.flat[:, cut].to(u.dtype).T @ u for cut in self.cuts])

    def push(self, x: Tensor) -> Tensor:
        return torch.stack([self.flat[:, cut].to(x.dtype) @ x[cut] for cut in self.cuts]).sum(0)


def strip_pairs(
    block: AnyBlock, other: AnyBlock, total: Tensor, strips: Strips | None
) -> Iterator[tuple[AnyBlock, AnyBlock, Tensor]]:
    """(rows of the strip, other rows, their part of the Gram matrix) per strip."""
    C = block.n_outputs
    for a, b in narrow_strips(strips, block.n_rows, C, block.device):
        first = a if other is block else 0
        yield block.rows(a, b), other.rows(first, other.n_rows), total[a * C : b * C, first * C :]
