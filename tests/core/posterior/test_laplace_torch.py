"""Agreement with laplace-torch, which forms the dense precision and inverts it."""

from __future__ import annotations

import pytest
import torch
from cases import CASES
from core.problems import PLENTY, assert_close, case_named, prior_of, subset
from torch.utils.data import DataLoader, TensorDataset

from sublaplace_cli.catalog import TASKS, load
from sublaplace_cli.core.jacobian.capture import prepare_capture
from sublaplace_cli.core.jacobian.rows import HeldJacobian
from sublaplace_cli.core.likelihoods.multiclass import Multiclass
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.posterior.diagonal import DiagonalPosterior
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.path import fit_subnet

laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed: pip install laplace-torch")
curvature = pytest.importorskip("laplace.curvature", reason="laplace-torch has no curvature backends here")

SIGMA2 = 0.3
# Left out: one logit (its H is 0), an output of shape (rows,), several input arrays and log-variances, which it does
# not take.
CASES_IN_COMMON = [
    case.name for case in CASES if case.kind in ("regression", "multiclass") and case.name not in ("two-inputs", "tied")
]
in_common = pytest.mark.parametrize("name", CASES_IN_COMMON)


class Ours:
    """Our side of the comparison: capture, likelihood and precision of a case."""

    def __init__(self, name: str, prior: torch.Tensor | None = None) -> None:
        self.case = case_named(name)
        self.model, self.train, self.targets, self.test, _ = self.case.make()
        layout = Layout.of(self.model)
        self.p = layout.size
        self.prior = prior_of("equal", self.p) if prior is None else prior
        capture = prepare_capture(self.model, layout, self.train, PLENTY)
        self.rows, self.test_rows = (self._held(capture, inputs) for inputs in (self.train, self.test))
        root = load(TASKS[self.case.task].entry)().with_noise(SIGMA2).root(self.rows.outputs)
        self.precision = Precision(self.rows, root, self.prior, PLENTY)

    @staticmethod
    def _held(capture, inputs) -> HeldJacobian:
        captured = capture(inputs)
        return HeldJacobian(capture.layout, captured.f, tuple(captured.blocks))

    def full_variance(self) -> torch.Tensor:
        return fit_full(self.precision).variance(self.test_rows)

    def subnet_variance(self, S: torch.Tensor, form: str) -> torch.Tensor:
        return fit_subnet(self.precision, S, form).variance(self.test_rows)


def theirs(ours: Ours, kind, prior, backend=None, **options) -> torch.Tensor:
    """Functional variance of the test rows (M, C) by a class of laplace-torch, in float64.

    Its plain torch.func backend: the default one multiplies the curvature by a float32 identity matrix.
    """
    backend = backend or curvature.GGNInterface
    task = "classification" if ours.case.task == "multiclass" else "regression"
    noise = {} if task == "classification" else {"sigma_noise": SIGMA2**0.5}
    posterior = kind(ours.model, task, prior_precision=prior, backend=backend, **noise, **options)
    posterior.fit(DataLoader(TensorDataset(ours.train, ours.targets), batch_size=8))
    mean, variance = posterior._glm_predictive_distribution(ours.test)
    assert variance.dtype == torch.float64
    assert_close(ours.test_rows.outputs, mean, 1e-12)
    return variance.diagonal(dim1=1, dim2=2)


@pytest.fixture
def no_ridge(monkeypatch):
    """laplace-torch's softmax Hessian has no ridge: without ours the two are the same formula.

    diag(p) − ppᵀ is singular then, so its root is taken by eigenvectors instead of Cholesky.
    """

    def root(_self, f):
        p = torch.softmax(f, 1)
        values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1))
        return vectors * values.clamp(min=0).sqrt().unsqueeze(1)

    monkeypatch.setattr(Multiclass, "root", root)


@in_common
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_subnet_laplace(name, form, no_ridge):
    ours = Ours(name)
    S = subset(ours.p, ours.p // 2, seed=1)
    kind = laplace.subnetlaplace.FullSubnetLaplace
    assert_close(ours.subnet_variance(S, form), theirs(ours, kind, 0.7, subnetwork_indices=S))


@in_common
def test_full_laplace(name, no_ridge):
    ours = Ours(name)
    assert_close(ours.full_variance(), theirs(ours, laplace.FullLaplace, 0.7))


@in_common
def test_full_laplace_with_a_prior_for_each_parameter(name, no_ridge):
    prior = prior_of("unequal", Layout.of(case_named(name).make()[0]).size)
    ours = Ours(name, prior)
    assert_close(ours.full_variance(), theirs(ours, laplace.FullLaplace, prior))


@in_common
def test_diagonal_laplace(name, no_ridge):
    ours = Ours(name)
    found = DiagonalPosterior(ours.prior, ours.precision.data_diagonal(), PLENTY).variance(ours.test_rows)
    assert_close(found, theirs(ours, laplace.DiagLaplace, 0.7))


@pytest.mark.parametrize(
    "name", [n for n in CASES_IN_COMMON if case_named(n).task == "regression" and case_named(n).n_outputs == 1]
)
def test_functional_laplace(name):
    """The same posterior in function space, through their Gram matrix.

    One output only: with several, version 0.3 transposes each C × C block of the kernel between test and training rows.
    """
    ours = Ours(name)
    backend = curvature.CurvlinopsGGN  # the plain one is not among those it accepts
    variance = theirs(ours, laplace.FunctionalLaplace, 0.7, backend, n_subset=ours.case.n_train)
    assert_close(ours.full_variance(), variance)


@pytest.mark.parametrize("name", [n for n in CASES_IN_COMMON if case_named(n).task == "multiclass"])
def test_the_ridge_of_the_softmax_hessian_changes_little(name):
    """ε = 1e-6 adds at most ε·ΣJᵀJ/v to Ω, relatively to its prior: that bounds the change of the variance."""
    ours = Ours(name)
    J = torch.cat([block.dense().values for block in ours.rows.blocks], dim=2).flatten(0, 1)
    bound = 1e-6 * float(torch.linalg.matrix_norm(J, 2)) ** 2 / 0.7
    assert bound < 1e-2
    found, variance = ours.full_variance(), theirs(ours, laplace.FullLaplace, 0.7)
    assert bool((found < variance).all())  # more precision, less variance
    assert bool((found >= variance * (1 - bound)).all())
