"""Variances of sub-networks at the test rows, stored and reused."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core.omega.row_sums import column_chunks
from ..core.posterior.path import path_variances
from ..core.posterior.rescale import Rescale, outside_norms, rescaled_draws
from ..core.prediction import Comparison, Prediction
from ..files.artifacts.artifact import Artifact
from ..files.artifacts.run_folder import file_stem
from .posteriors import Fitted, variant
from .problem import Problem
from .run import Run
from .selections import Chosen
from .store import Content, Key


def predict(
    problem: Problem, path: Sequence[Chosen], fit: Callable[[], Sequence[Fitted]], known: Comparison
) -> list[Prediction]:
    """Predictions of sub-networks, each a prefix of the next one; `fit` returns their posteriors."""
    run = problem.run
    keys = [prediction_key(run, chosen.method, chosen.k, chosen) for chosen in path]

    def read(artifact: Artifact) -> Prediction | None:
        chosen = next(chosen for chosen in path if chosen.digest == artifact.meta["inputs"]["indices"])
        return read_prediction(run, artifact, problem.rows.test.jacobian.outputs, chosen.indices)

    def write(prediction: Prediction) -> Content:
        return content_of(prediction, known)

    if run.job.posterior.samples is not None:  # draws are not stored: nothing to reuse
        with run.store.timed("predict"):
            made = _made(problem, path, fit(), list(range(len(path))))
        return [run.store.put(key, prediction, write).value for key, prediction in zip(keys, made, strict=True)]
    stored = run.store.get_all(keys, lambda missing: _made(problem, path, fit(), missing), read, write)
    return [prediction.value for prediction in stored]


def prediction_key(run: Run, method: str, k: int, chosen: Chosen | None = None, step: str = "predict") -> Key:
    """The artifact key of a method's predictions; `chosen` is the sub-network that they use."""
    name = file_stem("predictions", method, k)
    inputs = {} if chosen is None else {"indices": chosen.digest}
    name = name if chosen is None else variant(name, run.rescale)
    return Key("predictions", name, inputs, {"method": method, "k": k}, step)


def read_prediction(run: Run, artifact: Artifact, mean: Tensor, indices: Tensor | None = None) -> Prediction | None:
    """A stored prediction; None if it lacks the comparison with the full posterior."""
    meta = artifact.meta
    if run.job.compares_with_full and "std_full" not in meta["tensors"]:
        return None
    variance = artifact.tensor("variance", tuple(mean.shape)).to(run.device)
    rescale = Rescale(meta["rescale"], meta["remainder"])
    return Prediction(meta["method"], meta["k"], mean, variance, meta["freedom"], rescale, indices)


def content_of(prediction: Prediction, known: Comparison) -> Content:
    """Mean, std, std_full and target of each test row and output; the variance has all its digits."""
    tensors = {"mean": prediction.mean, "std": prediction.std, "variance": prediction.variance}
    if known.std_full is not None:
        tensors["std_full"] = known.std_full
    if known.targets is not None:
        tensors["target"] = known.targets
    rescale = prediction.rescale
    return tensors, {"freedom": prediction.freedom, "rescale": rescale.c, "remainder": rescale.b}


def _made(problem: Problem, path: Sequence[Chosen], fitted: Sequence[Fitted], missing: list[int]) -> list[Prediction]:
    """The missing predictions of a path; all are computed together, so no bit depends on which artifacts exist."""
    run, test = problem.run, problem.rows.test.jacobian
    variances = path_variances([each.posterior for each in fitted], test, run.memory)
    predictions = []
    for i in missing:
        outside = _outside(problem, fitted[i]) if fitted[i].rescale.b else torch.zeros_like(variances[i]).flatten()
        predictions.append(
            Prediction(
                method=path[i].method,
                k=path[i].k,
                mean=test.outputs,
                variance=fitted[i].rescale.apply(variances[i], outside.reshape(variances[i].shape)),
                freedom=fitted[i].posterior.freedom,
                rescale=fitted[i].rescale,
                indices=path[i].indices,
                samples=None if run.job.posterior.samples is None else _samples(problem, fitted[i], outside),
            )
        )
    return predictions


def _outside(problem: Problem, fitted: Fitted) -> Tensor:
    """‖g outside S‖² of the test rows (M·C,)."""
    test, prior = problem.rows.test.jacobian, problem.hyperparameters.prior
    return outside_norms(test, problem.test_norms, fitted.posterior.indices, prior, problem.run.memory)


def _samples(problem: Problem, fitted: Fitted, outside: Tensor) -> Tensor:
    """Draws of the outputs at the test rows (count, M, C)."""
    run, test = problem.run, problem.rows.test.jacobian
    count, seed = run.job.posterior.samples or 0, run.job.selection.seed
    theta = fitted.posterior.draw(count, seed)
    chunks = column_chunks(test, fitted.posterior.indices, run.memory)
    draws = torch.cat([J_S.T @ theta for _, J_S in chunks])  # (M·C, count)
    own = rescaled_draws(draws, fitted.rescale, outside, torch.Generator().manual_seed(seed + 1))
    return test.outputs + own.T.reshape(count, *test.outputs.shape)
