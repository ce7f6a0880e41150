"""Products in float32: the error that the check names is the true one, at every size of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from core.problems import Problem, solved

from sublaplace_cli.core.jacobian.rows import Jacobian
from sublaplace_cli.core.kernels.arithmetic import Arithmetic
from sublaplace_cli.core.omega import gram_float32
from sublaplace_cli.core.omega import precision as precision_module
from sublaplace_cli.core.omega.gram_float32 import Sample, require_accuracy, sample_of
from sublaplace_cli.core.posterior.full import FullPosterior, fit_full
from sublaplace_cli.errors import NumericsError

MEMORY = 2**30


def of_prior(name: str, factor: float, arithmetic: Arithmetic) -> tuple[Problem, FullPosterior, torch.Tensor]:
    problem = solved(name, "equal")
    precision = replace(problem.precision, prior=problem.precision.prior * factor, gram_dtype=arithmetic)
    posterior = fit_full(precision)
    return problem, posterior, posterior.covariance(problem.test)


@pytest.mark.parametrize("factor", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("name", ["mlp", "mlp-3-outputs", "conv-binary", "conv-multiclass", "attention"])
def test_the_error_is_that_against_float64(monkeypatch: pytest.MonkeyPatch, name: str, factor: float) -> None:
    monkeypatch.setattr(gram_float32, "BOUND", 1.0)
    _, _, exact = of_prior(name, factor, Arithmetic.FLOAT64)
    problem, posterior, found = of_prior(name, factor, Arithmetic.FLOAT32)
    errors = ((found - exact) / exact).diagonal(dim1=1, dim2=2).abs()
    true = float(errors.max())
    assert true > 1e-9, "products in float32 were asked for"
    few, places = sample_of(problem.test)
    sample = Sample.of(posterior.precision)
    cross = posterior.precision.cross_gram(few)
    told = require_accuracy(posterior.precision, posterior.factor, few, cross, found[places], sample)
    at_these = float(errors[places].max())
    assert at_these <= told * (1 + 1e-3) + 1e-12
    assert told <= 1.2 * at_these + 1e-7, "a check that cries wolf is none"


def test_what_is_off_by_more_than_the_bound_is_refused() -> None:
    of_prior("mlp-3-outputs", 1.0, Arithmetic.FLOAT32)
    with pytest.raises(NumericsError, match=r"off by up to 0\.0\d+ of itself \(bound 0\.001\)"):
        of_prior("mlp-3-outputs", 1e-4, Arithmetic.FLOAT32)


def test_the_check_reads_the_training_rows_no_more_often_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many, each pass takes as long as a good part of the Gram matrix."""
    passes, whole = [], precision_module.gram_strips

    def counted(left: Jacobian, right: Jacobian, prior: torch.Tensor, memory: int, same: bool, by: int, **more):
        passes.append(by)
        return whole(left, right, prior, memory, same, by, **more)

    monkeypatch.setattr(precision_module, "gram_strips", counted)
    of_prior("conv-multiclass", 1.0, Arithmetic.FLOAT32)
    assert passes.count(Arithmetic.FLOAT32) == 3, "the Gram matrix, a sample of training rows, the test rows"
    assert passes.count(Arithmetic.FLOAT64) == 2, "both samples once more"
