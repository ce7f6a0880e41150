"""Predictions whose size is fitted to the targets of held-out rows."""

from collections.abc import Sequence
from dataclasses import replace

from ...catalog import CALIBRATED, TASKS
from ...core.gaussian import Gaussian, diagonal_covariance
from ...core.posterior.rescale import Rescale
from ...core.prediction import Prediction
from ...core.tuning.calibration import Vary, scaled_variance, with_temperature
from ..problem import Problem

MAP, TEMPERATURE = "map", "temperature"
LEAST_ROWS_PER_FOLD = 2


def calibrated(problem: Problem, prediction: Prediction, held_out: Prediction) -> Prediction:
    """With a factor on its covariances, or a temperature; unchanged if it is certain of every row."""
    is_temperature = prediction.method == TEMPERATURE
    if not (is_temperature or problem.run.calibrates) or prediction.method == MAP:
        return prediction
    return _fitted(problem, prediction, held_out.outputs, with_temperature if is_temperature else scaled_variance)


def rivals(problem: Problem, predictions: Sequence[Prediction]) -> list[Prediction]:
    """What every table shows: the network alone, and for classes the two ways to calibrate it without a posterior."""
    run, test = problem.run, problem.predicted("test")
    network = Prediction(MAP, None, Gaussian.certain(test.f), 0.0)
    shown = [network]
    if TASKS[run.project.spec.task].labels and can_calibrate(problem):
        rows = problem.held_out
        ones = [Gaussian(f, diagonal_covariance(f.new_ones(f.shape))) for f in (test.f, rows.f)]
        constant = Prediction(f"constant, {CALIBRATED}", None, ones[0], None)
        certain = replace(network, method=TEMPERATURE, freedom=None, own_mean=True)
        shown.append(_fitted(problem, certain, Gaussian.certain(rows.f), with_temperature))
        shown.append(_fitted(problem, constant, ones[1], scaled_variance))
    asked = {prediction.method for prediction in predictions}
    return [prediction for prediction in shown if prediction.method not in asked]


def can_calibrate(problem: Problem) -> bool:
    """Whether the held-out rows have targets, and are enough to be cut into folds."""
    run = problem.run
    enough = run.held_out != "test" or len(run.split("test")) >= LEAST_ROWS_PER_FOLD * run.job.posterior.folds
    return run.targets(run.held_out) is not None and enough


def _fitted(problem: Problem, prediction: Prediction, held_out: Gaussian, vary: Vary) -> Prediction:
    store, reporter = problem.run.store, problem.run.reporter
    with store.timed("calibrate"):
        outputs, calibration = problem.calibrator.calibrated(prediction.outputs, held_out, vary)
    if calibration.factor.at_a_bound:
        reporter.warn(f"{prediction.name}: the best factor is at a bound: the held-out rows do not determine it")
    samples = prediction.samples
    if samples is not None:
        mean, ratio = prediction.outputs.mean, outputs.variance / prediction.outputs.variance.clamp(min=1e-300)
        samples = mean + ratio.sqrt() * (samples - mean)
    rescale = prediction.rescale if vary is with_temperature else Rescale(calibration.factor.value)
    return replace(prediction, outputs=outputs, rescale=rescale, samples=samples, calibration=calibration)
