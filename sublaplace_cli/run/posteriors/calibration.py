"""Predictions whose size is fitted to the targets of held-out rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ...catalog import CALIBRATED, TASKS
from ...core.gaussian import Gaussian, diagonal_covariance
from ...core.posterior.rescale import Rescale
from ...core.prediction import Prediction
from ...core.tuning.calibration import Vary, scaled_variance, with_temperature
from ..problem import PredictedRows, Problem
from ..rows.test_sets import TestSet

MAP, TEMPERATURE, CONSTANT = "map", "temperature", f"constant, {CALIBRATED}"
LEAST_ROWS_PER_FOLD = 2


@dataclass(frozen=True)
class HeldOut:
    """The rows that factors are fitted to, and every method there before that."""

    rows: PredictedRows
    methods: Mapping[str, Prediction]  # by name
    for_first_set: bool  # without a split of their own they are the rows to predict, which are then cut into folds

    @classmethod
    def of(cls, problem: Problem, methods: Sequence[Prediction], test: TestSet) -> Self:
        """For predictions of a set of test rows: factors are fitted to the first one, so that a shift is seen."""
        return cls(problem.held_out, {each.name: each for each in methods}, test == problem.run.tests[0])


def calibrated(problem: Problem, prediction: Prediction, held_out: HeldOut) -> Prediction:
    """With a factor on its covariances, or a temperature; unchanged if it is certain of every row."""
    if not (prediction.method == TEMPERATURE or problem.run.calibrates) or prediction.method == MAP:
        return prediction
    fitted = _fitted(problem, prediction, held_out, held_out.methods[prediction.name].outputs)
    if held_out.for_first_set and fitted.calibration is not None and fitted.calibration.factor.at_a_bound:
        wanted = "no variance at all" if fitted.calibration.factor.value < 1 else "ever more variance"
        problem.run.reporter.warn(f"{prediction.name}: the held-out rows want {wanted}: its factor is at a bound")
    return fitted


def as_calibrated(prediction: Prediction, outputs: Gaussian) -> Gaussian:
    """Other outputs of the same method, with the factor of a calibrated prediction."""
    fitted = prediction.calibration
    if fitted is None:
        return outputs
    return _vary(prediction)(outputs, fitted.factor.value).with_noise(fitted.factor.noise)


def at_other_rows(judged: Sequence[Prediction], there: Mapping[str, Prediction], f: Tensor) -> dict[Gaussian, Gaussian]:
    """Predictions at other rows by their outputs at the test rows.

    `there` are those of the methods, by name, before a calibration; `f` are the network's outputs, for its rivals.
    """
    plain = [there[each.name].outputs if each.name in there else rival_outputs(each.method, f) for each in judged]
    return {each.outputs: as_calibrated(each, own) for each, own in zip(judged, plain, strict=True)}


def rivals(
    problem: Problem, predictions: Sequence[Prediction], test: PredictedRows, held_out: HeldOut
) -> list[Prediction]:
    """What every table shows: the network alone, and for classes the two ways to calibrate it without a posterior."""
    run = problem.run

    def fitted(rival: Prediction) -> Prediction:
        return _fitted(problem, rival, held_out, rival_outputs(rival.method, held_out.rows.f))

    network = Prediction(MAP, None, rival_outputs(MAP, test.f), 0.0)
    shown = [fitted(network) if run.calibrates_noise else network]
    if TASKS[run.project.spec.task].labels and can_calibrate(problem):
        certain = replace(network, method=TEMPERATURE, freedom=None, own_mean=True)
        constant = Prediction(CONSTANT, None, rival_outputs(CONSTANT, test.f), None)
        shown += [fitted(certain), fitted(constant)]
    asked = {prediction.method for prediction in predictions}
    return [prediction for prediction in shown if prediction.method not in asked]


def rival_outputs(method: str, f: Tensor) -> Gaussian:
    """Those of a rival for outputs f of the network, before a calibration."""
    return Gaussian(f, diagonal_covariance(torch.ones_like(f))) if method == CONSTANT else Gaussian.certain(f)


def can_calibrate(problem: Problem) -> bool:
    """Whether the held-out rows have targets, and are enough to be cut into folds."""
    run = problem.run
    enough = run.held_out != "test" or len(run.split("test")) >= LEAST_ROWS_PER_FOLD * run.job.posterior.folds
    return run.targets(run.held_out) is not None and enough


def _vary(prediction: Prediction) -> Vary:
    return with_temperature if prediction.method == TEMPERATURE else scaled_variance


def _fitted(problem: Problem, prediction: Prediction, held_out: HeldOut, there: Gaussian) -> Prediction:
    """With a factor that is fitted to the same method's outputs at the held-out rows."""
    vary, calibrator = _vary(prediction), problem.calibrator
    if not held_out.for_first_set:
        calibrator = replace(calibrator, n_folds=None)
    with problem.run.store.timed("calibrate"):
        outputs, calibration = calibrator.calibrated(prediction.outputs, there, vary)
    samples = prediction.samples
    if samples is not None:
        mean, ratio = prediction.outputs.mean, outputs.variance / prediction.outputs.variance.clamp(min=1e-300)
        samples = mean + ratio.sqrt() * (samples - mean)
    rescale = prediction.rescale if vary is with_temperature else Rescale(calibration.factor.value)
    return replace(prediction, outputs=outputs, rescale=rescale, samples=samples, calibration=calibration)
