"""A selection method is a function of the problem and k that returns indices.

To add one:
1. write `name(problem: SelectionProblem, k: int) -> Selection` in a file `name.py` here; where some inputs cannot work,
   add `check(facts: SelectorFacts, k: int | None) -> None`, which refuses them before anything is computed, and where
   the caller could make it faster, `advise(problem, k) -> str | None`; where it does more than sort the scores,
   `cost(size: SearchSize) -> SearchCost`,
2. add one line to `catalog.METHODS`,
3. the contract tests over all methods cover it; add tests for what only this method does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UserError
from ..jacobian.rows import Jacobian
from ..network.layout import Layout, Parameter
from ..omega.precision import Precision


@dataclass(frozen=True)
class SelectorFacts:
    """Facts known before any gradient is computed; the input of a method's `check`."""

    layout: Layout
    last_linear: tuple[str, ...]  # parameter names of the last nn.Linear that runs
    pool: str = "all"  # candidates: "all", "2k", "paper" or a number
    pattern: str | None = None  # the glob of a choice by name
    all_outputs: bool = True  # whether the reference rows have them, not only combinations


@dataclass(frozen=True)
class SearchSize:
    """How large a search is."""

    rows: int  # P, of the Jacobian of the training data
    candidates: int
    k: int
    row_products: int  # multiplications in one pass over all factored blocks of the training rows
    row_elements: int  # numbers in the blocks that are handled one by one


@dataclass(frozen=True)
class SearchCost:
    """Roughly what a search takes."""

    products: float  # multiplications inside products of matrices
    elements: float  # numbers that are handled one by one
    reads: float  # passes over the training rows


@dataclass(frozen=True)
class SelectionProblem:
    """Everything that a method may read."""

    precision: Precision  # Ω of the training rows
    score: Tensor  # (p,) squared gradients over the reference rows
    data_diagonal: Tensor  # (p,) diag(Ω) − V
    theta: Tensor  # (p,) the trained parameters
    last_linear: tuple[str, ...]  # parameter names of the last nn.Linear that runs
    seed: int = 0
    pool: str = "all"
    other_rows: Jacobian | None = None  # the reference rows, if they are not the training rows

    @property
    def reference(self) -> Jacobian:
        return self.precision.jacobian if self.other_rows is None else self.other_rows

    @property
    def layout(self) -> Layout:
        return self.precision.layout

    @property
    def prior(self) -> Tensor:
        return self.precision.prior


@dataclass(frozen=True)
class Selection:
    """Flat indices in the order chosen, and the value that decided each."""

    indices: Tensor  # (k,) int64
    values: Tensor  # (k,) float64


def all_of(problem: SelectionProblem, parameters: Sequence[Parameter]) -> Selection:
    """All entries of some parameters, with their scores."""
    indices = problem.layout.indices(parameters).to(problem.score.device)
    return Selection(indices, problem.score[indices])


def rounded(values: Tensor) -> Tensor:
    """Values to 12 significant digits, so that rounding noise does not decide between equal values."""
    values = values.double()
    magnitude = values.abs()
    exponent = torch.floor(torch.log10(magnitude.clamp(min=1e-290)))
    digits = torch.round(magnitude / 10.0**exponent * 1e11)
    carried = digits >= 1e12  # 9.999… became 10: the same number must have one representation
    digits, exponent = torch.where(carried, digits / 10, digits), exponent + carried
    return torch.sign(values) * digits * 10.0 ** (exponent - 11)


def largest(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest after rounding, in falling order; ties go to the lower index."""
    if 4 * k > len(values):
        return torch.sort(rounded(values), descending=True, stable=True).indices[:k]
    least = torch.topk(values.double(), k).values[-1]
    near = (values >= least - 2e-11 * least.abs()).nonzero().squeeze(1)  # rounding can reorder only these
    return near[torch.sort(rounded(values[near]), descending=True, stable=True).indices[:k]]


def smallest(values: Tensor, k: int) -> Tensor:
    """Indices of the k smallest after rounding, in rising order; ties go to the lower index."""
    return torch.sort(rounded(values), stable=True).indices[:k]


def checked(indices: Tensor, p: int, method: str, k: int | None = None) -> Tensor:
    """k unique flat indices within 0..p−1, or an error that says what is wrong with them."""
    flat = torch.as_tensor(indices)
    problem = None
    if flat.ndim != 1 or flat.is_floating_point() or flat.dtype == torch.bool:
        problem = f"expected a vector of integers, got {flat.dtype} of shape {tuple(flat.shape)}"
    elif k is not None and len(flat) != k:
        problem = f"expected {k} indices, got {len(flat)}"
    elif len(flat) == 0:
        problem = "it chose no parameter"
    elif int(flat.min()) < 0 or int(flat.max()) >= p:
        problem = f"indices must lie in 0..{p - 1}, got {int(flat.min())}..{int(flat.max())}"
    elif len(torch.unique(flat)) != len(flat):
        problem = "an index occurs twice"
    if problem:
        raise UserError(f"the selection of '{method}' is not valid: {problem}")
    return flat.to(torch.int64)
