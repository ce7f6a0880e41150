"""Serving: mean and standard deviation from a stored posterior and its network, without spec, run folder or data."""

import copy
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .. import device as devices
from ..architectures.binary_logodds import add_binary_logodds
from ..catalog import load, task_of
from ..core.column_pass import ColumnPass
from ..core.gaussian import Gaussian
from ..core.jacobian.capture import SAMPLE_ROWS, Capture, prepare_capture
from ..core.likelihoods import Likelihood
from ..core.network.forward import Inputs, evenly_spaced, map_inputs, row_count
from ..core.network.layout import Layout, network_digest
from ..errors import UserError
from ..files.artifacts.artifact import Artifact
from ..files.data.datasets import Preparation
from ..files.data.transforms import compile_steps
from ..files.reading import reading
from ..files.spec.data import DataSpec
from ..run.identity.network import require_same_function
from ..run.identity.run_identity import parameter_table
from ..run.posteriors.fitting import FIT_AGAIN, OLDER, Fitted, open_posterior, read_fitted, read_prior, scales_of
from ..run.rows.passes import parts_of

ROWS_PER_PASS = 256
Prepare = Callable[[Tensor, Tensor], Tensor]


class Predictor:
    """Mean and epistemic standard deviation of new rows; safe to call from several threads."""

    def __init__(self, artifact: Artifact, model: nn.Module) -> None:
        meta = artifact.meta
        self._artifact, self._lock = artifact, threading.Lock()
        self._model = _like_the_table(model, meta["parameters"]).eval()
        self._parameter = next(self._model.parameters())
        wrap = meta["spec"]["model"].get("wrap")
        if wrap is not None:
            add_binary_logodds(self._model, wrap["binary-logodds"]["classes"])
        self._shapes = [tuple(shape) for shape in meta["serving"]["row_shapes"]]
        self._prepare = _preparation(artifact, self._shapes, meta["serving"]["integers_as_floats"])
        found = scales_of(artifact)
        self._target, self.classes = found.target, found.classes  # labels by class number; None: they are numbers
        likelihood = load(task_of(meta["spec"]["task"], meta["spec"].get("outputs")).entry)()
        likelihood = likelihood if meta["link"] is None else likelihood.with_link(meta["link"])
        noise = meta["noise_variance"]
        self._likelihood: Likelihood = likelihood if noise is None else likelihood.with_noise(noise)
        self._pass: Callable[[Inputs], Gaussian] | None = None

    def __call__(self, x: Inputs | np.ndarray) -> tuple[Tensor, Tensor]:
        """(mean, std) of one row (C,) or of a batch (M, C), in the units of the data that the posterior was fitted to.

        A network with several inputs takes a dict or tuple of them. `std` is epistemic: it does not include the
        observation noise. Of means and log-variances, these are the means.
        """
        outputs, single = self._outputs(x)
        return self._in_units(outputs, self._means(outputs).std, single)

    def observations(self, x: Inputs | np.ndarray) -> tuple[Tensor, Tensor]:
        """As a call, but with the standard deviation of a new observation: it includes the observation noise."""
        outputs, single = self._outputs(x)
        noise = self._likelihood.noise(outputs)
        if noise is None:
            raise UserError("observations are for measurements: this posterior is one of a classification")
        return self._in_units(outputs, (self._means(outputs).std.square() + noise).sqrt(), single)

    def _means(self, outputs: Gaussian) -> Gaussian:
        return outputs.some(self._likelihood.means(outputs.mean.shape[1]))

    def _in_units(self, outputs: Gaussian, std: Tensor, single: bool) -> tuple[Tensor, Tensor]:
        mean = self._means(outputs).mean
        if self._target is not None:
            shift, scale = (torch.as_tensor(value).to(mean) for value in (self._target.mean, self._target.std))
            mean, std = mean * scale + shift, std * scale
        return (mean[0], std[0]) if single else (mean, std)

    def probabilities(self, x: Inputs | np.ndarray) -> Tensor:
        """Class probabilities of one row (classes,) or of a batch (M, classes), averaged over the posterior."""
        outputs, single = self._outputs(x)
        log_p = self._likelihood.log_probabilities(outputs)
        if log_p is None:
            raise UserError("probabilities are for classes: this posterior is one of a regression")
        return log_p[0].exp() if single else log_p.exp()

    def _outputs(self, x: Inputs | np.ndarray) -> tuple[Gaussian, bool]:
        """The outputs in the network's units, and whether x is a single row."""
        rows = map_inputs(torch.as_tensor, x)  # type: ignore[arg-type]
        single = self._is_single(rows)
        inputs = map_inputs(lambda t: self._prepare(t.unsqueeze(0) if single else t, self._parameter), rows)
        n_rows = row_count(inputs)
        with self._lock:
            if self._pass is None:
                self._pass = self._prepare_pass(inputs)
            if n_rows <= ROWS_PER_PASS:
                return self._pass(inputs), single
            parts = [self._pass(_cut(inputs, start)) for start in range(0, n_rows, ROWS_PER_PASS)]
        means, covariances = zip(*((part.mean, part.covariance) for part in parts), strict=True)
        return Gaussian(torch.cat(means), torch.cat(covariances), parts[0].noise_factor), single

    def _is_single(self, rows: Inputs) -> bool:
        found = [tuple(tensor.shape) for tensor in parts_of(rows)]
        if found == self._shapes:
            return True
        if [shape[1:] for shape in found] == self._shapes and len({shape[:1] for shape in found}) == 1 and found[0][0]:
            return False
        expected = " and ".join(f"{shape} or (rows, {', '.join(map(str, shape))})" for shape in self._shapes)
        raise UserError(f"the input has the shape {' and '.join(map(str, found))}, expected {expected}")

    def _prepare_pass(self, inputs: Inputs) -> Callable[[Inputs], Gaussian]:
        """Check the network on a few rows, read the posterior, and return inputs → outputs."""
        artifact, device = self._artifact, self._parameter.device
        require_same_function(artifact, self._model, inputs, str(artifact.path))
        memory = int(devices.free_memory(device) * devices.SAFE_SHARE)
        layout = Layout.of(self._model)
        capture = prepare_capture(self._model, layout, evenly_spaced(inputs, SAMPLE_ROWS), memory)
        self._likelihood.check_outputs(capture.n_outputs)
        prior = read_prior(artifact, layout, device)[1]
        fitted = read_fitted(artifact, layout, prior, capture.n_outputs, memory)
        if fitted.rescale.b or not fitted.view.has_outside:
            return partial(_all_columns, capture, fitted, prior)
        columns, covariance = ColumnPass(capture, fitted.posterior.indices), fitted.posterior.serving_covariance
        return partial(_some_columns, columns, covariance(capture.n_outputs), fitted)


def _like_the_table(model: nn.Module, table: Sequence[tuple[str, list[int], int]]) -> nn.Module:
    """A copy whose trainable parameters are those of the posterior: the caller's network is left alone."""
    copied, names = copy.deepcopy(model), {name for name, *_ in table}
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(name in names)
    if parameter_table(Layout.of(copied)) != [list(row) for row in table]:
        raise UserError("the parameter table of the posterior is not that of this network")
    return copied


def _some_columns(
    columns: ColumnPass, covariance_of: Callable[[Tensor], Tensor], fitted: Fitted, inputs: Inputs
) -> Gaussian:
    """The outputs from the gradients of S alone."""
    f, J_S = columns(inputs)
    covariance = covariance_of(J_S)
    columns.require_finite(covariance)
    return Gaussian(f, fitted.rescale.apply(covariance, None), fitted.noise_factor)


def _all_columns(capture: Capture, fitted: Fitted, prior: Tensor, inputs: Inputs) -> Gaussian:
    """The outputs where features, or the remainder of a rescaling, need all gradients."""
    captured = capture(inputs)
    J_S, outside = fitted.columns(captured, prior)
    own = fitted.posterior.column_covariance(J_S, captured.f.shape[1])
    return Gaussian(captured.f, fitted.rescale.apply(own, outside), fitted.noise_factor)


def load_predictor(path: str | Path, model: nn.Module) -> Predictor:
    """A predictor from a `posterior-*.safetensors` and the network that it was fitted for.

    It needs no spec, no run folder and no training data; transforms and standardisation of the spec are applied. A
    network with other weights is refused.

    >>> predict = load_predictor(path, model)
    >>> mean, std = predict(x)
    >>> mean.shape == std.shape
    True
    """
    artifact = open_posterior(Path(path), str(path))
    meta = artifact.meta
    if "serving" not in meta:
        raise UserError(f"{path}: {OLDER}", hint=FIT_AGAIN)
    own = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    if any(own.get(name) != shape for name, shape, _ in meta["parameters"]):
        raise UserError(f"{path}: its parameter table is not that of this network")
    if meta["serving"]["network_sha256"] != network_digest(model):
        raise UserError(f"{path}: it was fitted for other weights", hint="load the checkpoint that it was fitted for")
    return Predictor(artifact, model)


def _cut(inputs: Inputs, start: int) -> Inputs:
    return map_inputs(lambda t: t[start : start + ROWS_PER_PASS], inputs)


def _preparation(artifact: Artifact, shapes: list[tuple[int, ...]], integers_as_floats: bool) -> Prepare:
    """(rows, like) → inputs of the network: transforms and standardisation of the spec, then the network's dtype."""
    scale = scales_of(artifact).input
    if artifact.meta["spec"]["data"].get("transforms"):
        with reading(artifact.path, "its data section cannot be read"):
            transforms = DataSpec.model_validate(artifact.meta["spec"]["data"]).transforms
        steps, _ = compile_steps(transforms, shapes[0])
        prepare = Preparation(steps, scale).apply
        return lambda rows, like: torch.from_numpy(prepare(rows.cpu().numpy())).to(like)
    if scale is not None:
        mean, std = torch.as_tensor(scale.mean), torch.as_tensor(scale.std)
        return lambda rows, like: ((rows.double() - mean.to(rows.device)) / std.to(rows.device)).to(like)

    def plain(rows: Tensor, like: Tensor) -> Tensor:
        keeps_integers = not rows.is_floating_point() and not integers_as_floats
        return rows.to(like.device) if keeps_integers else rows.to(like)

    return plain
