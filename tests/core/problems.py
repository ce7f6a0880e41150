"""Problems for the tests of core, each as the package sees it and as the dense reference does, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import reference
import torch
from cases import CASES, Case
from torch import Tensor

from sublaplace_cli.catalog import load, task_of
from sublaplace_cli.core.jacobian.blocks import Block, DenseBlock
from sublaplace_cli.core.jacobian.capture import Capture, prepare_capture
from sublaplace_cli.core.jacobian.rows import HeldJacobian
from sublaplace_cli.core.likelihoods import Likelihood
from sublaplace_cli.core.likelihoods.regression import Regression
from sublaplace_cli.core.network.forward import last_linear, row_count
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.panels import sizes
from sublaplace_cli.core.panels.sizes import Sizes
from sublaplace_cli.core.selectors import SelectionProblem

PLENTY = 2**30
NOISE = 0.3  # sigma2 of the regression cases
PRIORS = ("equal", "unequal")


def block_gram(block: Block, other: Block, v: Tensor) -> Tensor:
    """J V⁻¹ J′ᵀ of two blocks."""
    rows = [len(each.dense().flat) for each in (block, other)]
    total = torch.zeros(*rows, dtype=torch.float64, device=v.device)
    block.add_gram(other, v, total)
    return total


def columns_of(block: Block, local: Tensor, n_rows: int) -> Tensor:
    """Columns of one block (len(local), n_rows)."""
    out = torch.empty(len(local), n_rows, dtype=torch.float64, device=local.device)
    block.put_columns(local, out)
    return out


@dataclass(frozen=True, eq=False)
class Problem:
    """Ω of some training rows and a few test rows."""

    precision: Precision
    test: HeldJacobian
    H: Tensor  # (N, C, C), by the reference
    sigma2: float
    theta: Tensor
    last_linear: tuple[str, ...]

    @cached_property
    def J(self) -> Tensor:
        return dense(self.precision.jacobian)

    @property
    def J_test(self) -> Tensor:
        return dense(self.test)

    @property
    def v(self) -> Tensor:
        return self.precision.prior

    @cached_property
    def omega(self) -> Tensor:
        return reference.precision(self.J, self.H, self.v)

    @property
    def p(self) -> int:
        return len(self.v)

    def selection(self, **changes) -> SelectionProblem:
        """As the selectors see it, the training rows being the reference rows."""
        diagonal = self.precision.data_diagonal()
        problem = SelectionProblem(self.precision, diagonal, diagonal, self.theta, self.last_linear)
        return replace(problem, **changes)


def dense(jacobian: HeldJacobian) -> Tensor:
    """J (N, C, p) of a Jacobian that is held in memory."""
    return torch.cat([block.dense().values for block in jacobian.blocks], dim=2).double()


def dtypes_kept(blocks: Iterable[Block]) -> set[torch.dtype]:
    """Floating-point dtypes in which these blocks are kept."""
    return {t.dtype for block in blocks for t in block.tensors().values() if t.is_floating_point()}


def held(J: Tensor, layout: Layout | None = None, f: Tensor | None = None) -> HeldJacobian:
    """J (N, C, p) or (N, p) as the package's Jacobian, in blocks by the layout (default: one)."""
    J = J if J.ndim == 3 else J.unsqueeze(1)
    layout = layout or Layout.from_shapes([("w", (J.shape[2],))])
    f = torch.zeros(J.shape[:2], dtype=torch.float64) if f is None else f
    return HeldJacobian(layout, f, tuple(DenseBlock(one.offset, J[:, :, one.span]) for one in layout.parameters))


def synthetic(
    J: Tensor, v: Tensor | float = 1.0, sigma2: float = 1.0, J_test: Tensor | None = None, layout: Layout | None = None
) -> Problem:
    """A regression problem with this Jacobian."""
    train = held(J, layout)
    f, p = train.outputs, train.layout.size
    prior = v if isinstance(v, Tensor) else torch.full((p,), v, dtype=torch.float64)
    root = Regression(sigma2).root(f)
    precision = Precision(train, root, prior, PLENTY)
    test = held(J if J_test is None else J_test, layout)
    theta = torch.arange(p, dtype=torch.float64)
    return Problem(precision, test, reference.output_hessian("regression", f, sigma2), sigma2, theta, ())


@cache
def solved(name: str, prior: str = "equal") -> Problem:
    """A problem of `cases.py`, its Jacobian taken from the reference and not from capture."""
    case = case_named(name)
    model, train, _, test, _ = case.make()
    layout = Layout.of(model)
    f, J = reference.jacobian(model, train, row_count(train))
    f_test, J_test = reference.jacobian(model, test, row_count(test))
    sigma2 = NOISE if case.kind == "regression" else 1.0
    root = likelihood_of(case, sigma2).root(f)
    precision = Precision(held(J, layout, f), root, prior_of(prior, layout.size), PLENTY)
    H = reference.output_hessian(case.kind, f, sigma2)
    names = tuple(last_linear(model, train))
    return Problem(precision, held(J_test, layout, f_test), H, sigma2, layout.flatten(model), names)


def likelihood_of(case: Case, sigma2: float) -> Likelihood:
    return load(task_of(case.task, case.outputs).entry)().with_noise(sigma2)


def prior_of(kind: str, p: int) -> Tensor:
    """One precision for all parameters, or one each between 0.1 and 10."""
    if kind == "equal":
        return torch.full((p,), 0.7, dtype=torch.float64)
    return 10 ** (2 * torch.rand(p, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) - 1)


def capture_of(case: Case, dtype: torch.dtype = torch.float64, memory: int = PLENTY) -> tuple[Capture, object]:
    """The prepared capture of a case and its training rows."""
    model, train, *_ = case.make(dtype)
    return prepare_capture(model, Layout.of(model), train, memory), train


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def subset(p: int, k: int, seed: int = 0) -> Tensor:
    """k of p indices in no particular order."""
    return torch.randperm(p, generator=torch.Generator().manual_seed(seed))[:k]


def random_matrix(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same in every run."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_close(found: Tensor, expected: Tensor, relative: float = 1e-8) -> None:
    """Equal to `relative`, each entry measured against the larger of itself and 1e-6 of the largest."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert found.shape == expected.shape
    scale = expected.abs().clamp(min=1e-6 * float(expected.abs().max()))
    error = ((found - expected).abs() / scale.clamp(min=1e-300)).max()
    assert float(error) <= relative, f"relative error {float(error):.3g} > {relative:.3g}"


def cut(**changes: int) -> Sizes:
    """The sizes of a CPU with some of them changed, by the name that each has in its part of the table."""
    parts = {}
    for part in ("gram", "layer"):
        own = getattr(sizes.CPU, part)
        parts[part] = replace(own, **{name: changes.pop(name) for name in list(changes) if hasattr(own, name)})
    return replace(sizes.CPU, **changes, **parts)
