"""Features that are held: the same bits as those made when they are read, in one pass over the rows for all maps."""

from __future__ import annotations

import pytest
import torch
from core.features.test_fit import NAMES
from core.problems import PLENTY, capture_of, case_named, prior_of, subset
from core.test_workers import distribute, problem_of

from sublaplace_cli.core.features.beside import Beside
from sublaplace_cli.core.features.held import FEATURES_SHARE, HeldFeatures
from sublaplace_cli.core.features.sketch import Sketch
from sublaplace_cli.core.features.subset import Subset
from sublaplace_cli.core.features.views import view_of
from sublaplace_cli.core.jacobian.rows import RecomputedJacobian


class Counted:
    """Rows that are recomputed on every read, and how many were."""

    def __init__(self, name: str) -> None:
        capture, train = capture_of(case_named(name), torch.float32)
        self.captured, self.rows_computed = capture(train), 0

        def compute(start: int, stop: int):
            self.rows_computed += stop - start
            return [block.rows(start, stop) for block in self.captured.blocks]

        self.jacobian = RecomputedJacobian(capture.layout, self.captured.f, capture.templates, compute, 4)

    @property
    def n_rows(self) -> int:
        return len(self.captured.f)

    def row_bytes(self, k: int) -> int:
        return 8 * self.captured.f.shape[1] * k


@pytest.mark.parametrize("name", NAMES)
def test_one_pass_serves_all_maps_with_the_same_bits(name):
    own = Counted(name)
    layout, prior = own.jacobian.layout, prior_of("unequal", own.jacobian.layout.size)
    maps = [Sketch(8), Sketch(21, 3), Beside(Subset(subset(layout.size, 5)), Sketch(6, 1))]
    apart = [view_of(each, layout, prior, PLENTY).rows(own.jacobian).load(0, own.n_rows) for each in maps]
    own.rows_computed = 0
    held = HeldFeatures(prior, PLENTY)
    views = [view_of(each, layout, prior, PLENTY, held) for each in maps]
    for view, (expected,) in [*zip(views, apart, strict=True)] * 2:
        (block,) = view.rows(own.jacobian).load(0, own.n_rows)
        assert torch.equal(block.values, expected.values)
        (few,) = view.rows(own.jacobian).load(2, 5)
        assert torch.equal(few.values, expected.values[2:5])
    assert own.rows_computed == own.n_rows


def test_what_does_not_fit_is_made_when_it_is_read():
    own = Counted("mlp")
    layout, prior = own.jacobian.layout, prior_of("equal", own.jacobian.layout.size)
    room = FEATURES_SHARE * own.n_rows * own.row_bytes(10)
    held = HeldFeatures(prior, room)
    small, large = (view_of(Sketch(k), layout, prior, PLENTY, held).rows(own.jacobian) for k in (10, 11))
    assert small.held is not None
    assert large.held is None
    (expected,) = view_of(Sketch(11), layout, prior, PLENTY).rows(own.jacobian).load(0, own.n_rows)
    assert torch.equal(large.load(0, own.n_rows)[0].values, expected.values)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", ["mlp-multiclass", "conv-binary"])
def test_each_worker_makes_those_of_its_own_rows(name, workers):
    problem = problem_of(name, "unequal")
    maps = [Sketch(12, 3), Beside(Subset(subset(problem.p, 5)), Sketch(7, 1))]
    n = problem.precision.root.shape[0]

    def work(precision, test):
        held = HeldFeatures(precision.prior, PLENTY)
        views = [view_of(each, precision.layout, precision.prior, PLENTY, held) for each in maps]
        return [view.rows(precision.jacobian).load(0, n)[0].values for view in views]

    expected = work(problem.precision, problem.test)
    found, called = distribute(problem, workers, 3, work)
    assert called.count("feature_rows") == 1
    for values, alone in zip(found, expected, strict=True):
        assert torch.equal(values, alone)
