"""Predictions of sub-networks and features at the rows of a split; those of the test rows are stored and reused."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.features import FeatureMap
from ...core.gaussian import Gaussian
from ...core.omega.row_sums import column_chunks
from ...core.posterior.path import path_covariances
from ...core.posterior.rescale import Rescale, remainder_products, rescaled_draws
from ...core.prediction import Comparison, Prediction
from ...files.artifacts.artifact import Artifact
from ...files.artifacts.run_folder import file_stem
from ..choosing.chosen import Chosen
from ..problem import PredictedRows, Problem
from ..rows.test_sets import TestSet
from ..run import Run
from ..store import Content, Key
from .fitting import Fitted, fit, variant


def predict(problem: Problem, path: Sequence[Chosen], rows: PredictedRows, known: Comparison) -> list[Prediction]:
    """Predictions of sub-networks, each a prefix of the next one, or of one feature map.

    A calibration comes later: it sees all methods.
    """
    run = problem.run
    keys = [prediction_key(rows, chosen.method, chosen.k, chosen) for chosen in path]

    def read(artifact: Artifact) -> Prediction | None:
        chosen = next(chosen for chosen in path if chosen.k == artifact.meta["k"])
        return read_prediction(run, artifact, rows.jacobian.outputs, chosen.features)

    def make(missing: list[int]) -> list[Prediction]:
        return _predictions(problem, path, rows, fit(problem, path), missing)

    def write(prediction: Prediction) -> Content:
        return content_of(prediction, known)

    if rows.test is None or run.job.posterior.samples is not None:  # not stored: nothing to reuse
        with run.store.timed("predict"):
            made = make(list(range(len(path))))
        if rows.test is None:
            return made
        return [run.store.put(key, prediction, write).value for key, prediction in zip(keys, made, strict=True)]
    return [prediction.value for prediction in run.store.get_all(keys, make, read, write)]


def prediction_key(
    rows: PredictedRows, method: str, k: int, chosen: Chosen | None = None, step: str = "predict"
) -> Key:
    """The artifact key of a method's predictions; `chosen` are the parameters or features that they use."""
    name, test = file_stem("predictions", method, k), rows.test or TestSet(rows.split)
    inputs = {} if chosen is None else chosen.inputs
    name = name if chosen is None else variant(name, rows.run.fitted_rescale)
    inputs = {**inputs, **test.inputs, **rows.run.full_inputs}
    return Key("predictions", test.stem(name), inputs, {"method": method, "k": k}, step)


def read_prediction(
    run: Run, artifact: Artifact, mean: Tensor, features: FeatureMap | None = None
) -> Prediction | None:
    """A stored prediction; None if it lacks the comparison with the full posterior."""
    meta = artifact.meta
    if run.job.compares_with_full and "std_full" not in meta["tensors"]:
        return None
    covariance = artifact.tensor("covariance", (*mean.shape, mean.shape[1])).to(run.device)
    rescale = Rescale(meta["rescale"], meta["remainder"])
    return Prediction(meta["method"], meta["k"], Gaussian(mean, covariance), meta["freedom"], rescale, features)


def content_of(prediction: Prediction, known: Comparison) -> Content:
    """Mean, std, std_full and target of each test row and output, and the covariance of each row's outputs."""
    outputs = prediction.outputs
    tensors = {"mean": outputs.mean, "std": outputs.std, "covariance": outputs.covariance}
    optional = {"std_full": known.std_full, "target": known.targets}
    tensors |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    rescale = prediction.rescale
    return tensors, {"freedom": prediction.freedom, "rescale": rescale.c, "remainder": rescale.b}


def _predictions(
    problem: Problem, path: Sequence[Chosen], rows: PredictedRows, fitted: Sequence[Fitted], missing: list[int]
) -> list[Prediction]:
    """The missing predictions of a path; all are computed together, so no bit depends on which artifacts exist."""
    run, jacobian, prior = problem.run, rows.jacobian, problem.hyperparameters.prior
    if run.calibrates and rows.split == problem.held_out.split and all(each.held_out is not None for each in fitted):
        covariances = [each.held_out for each in fitted if each.held_out is not None]
    else:
        own = fitted[-1].view.rows(jacobian)
        covariances = path_covariances([each.posterior for each in fitted], own, run.memory)
    predictions = []
    for i in missing:
        chosen, posterior = path[i], fitted[i].posterior
        rescale = Rescale() if run.calibrates else fitted[i].rescale
        outside = None
        if rescale.b:
            outside = remainder_products(fitted[i].view, jacobian, rows.products, prior, run.memory)
        outputs = Gaussian(jacobian.outputs, rescale.apply(covariances[i], outside))
        drawn = rows.test is not None and run.job.posterior.samples is not None
        samples = _samples(run, rows, fitted[i], rescale, outside) if drawn else None
        about = (posterior.freedom, rescale, chosen.features, samples)
        predictions.append(Prediction(chosen.method, chosen.k, outputs, *about))
    return predictions


def _samples(run: Run, rows: PredictedRows, fitted: Fitted, rescale: Rescale, outside: Tensor | None) -> Tensor:
    """Draws of the outputs at the rows (count, M, C)."""
    jacobian, posterior = rows.jacobian, fitted.posterior
    count, seed = run.job.posterior.samples or 0, run.job.selection.seed
    theta = posterior.draw(count, seed)
    chunks = column_chunks(fitted.view.rows(jacobian), posterior.indices, run.memory)
    draws = torch.cat([J_S.T @ theta for _, J_S in chunks])  # (M·C, count)
    own = rescaled_draws(draws, rescale, outside, torch.Generator().manual_seed(seed + 1))
    return jacobian.outputs + own.T.reshape(count, *jacobian.outputs.shape)
