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
from ..core.checked_pass import CheckedColumnPass, CheckedPass, ExactRows, in_float64
from ..core.column_pass import ColumnPass, require_finite
from ..core.jacobian.capture import SAMPLE_ROWS, Capture, prepare_capture
from ..core.network.forward import Inputs, evenly_spaced, evenly_spaced_numbers, map_inputs, row_count
from ..core.network.layout import Layout, network_digest
from ..errors import SublaplaceError, UserError
from ..files.artifacts.artifact import Artifact
from ..files.data.datasets import Preparation
from ..files.data.transforms import compile_steps
from ..files.reading import reading
from ..files.spec.data import DataSpec
from ..run.posteriors import Fitted, open_posterior, read_fitted, read_prior, scales_of
from ..run.rows.passes import parts_of
from ..run.run import parameter_table

ROWS_PER_PASS = 256
Prepare = Callable[[Tensor, Tensor], Tensor]
Pass = Callable[[Inputs, ExactRows], tuple[Tensor, Tensor]]


class Predictor:
    """Mean and epistemic standard deviation of new rows; safe to call from several threads."""

    def __init__(self, artifact: Artifact, model: nn.Module) -> None:
        meta = artifact.meta
        self._artifact, self._lock = artifact, threading.Lock()
        self._model = copy.deepcopy(model).eval()  # a copy: the caller's network gets no hooks
        self._parameter = next(self._model.parameters())
        wrap = meta["spec"]["model"].get("wrap")
        if wrap is not None:
            add_binary_logodds(self._model, wrap["binary-logodds"]["classes"])
        self._shapes = [tuple(shape) for shape in meta["serving"]["row_shapes"]]
        self._prepare = _preparation(artifact, self._shapes, meta["serving"]["integers_as_floats"])
        self._target = scales_of(artifact).target
        self._pass: Pass | None = None

    def __call__(self, x: Inputs | np.ndarray) -> tuple[Tensor, Tensor]:
        """(mean, std) of one row (C,) or of a batch (M, C), in the units of the data that the posterior was fitted to.

        A network with several inputs takes a dict or tuple of them. `std` is epistemic: it does not include the
        observation noise.
        """
        rows = map_inputs(torch.as_tensor, x)  # type: ignore[arg-type]
        single = self._is_single(rows)
        inputs = map_inputs(lambda t: self._prepare(t.unsqueeze(0) if single else t, self._parameter), rows)
        n_rows = row_count(inputs)

        def exact_rows(start: int, chosen: Sequence[int]) -> Inputs:
            """These rows from `start` on, in float64."""
            like, numbers = torch.empty(0).to(self._parameter).double(), [start + row for row in chosen]
            return map_inputs(lambda t: self._prepare(t.unsqueeze(0) if single else t[numbers], like), rows)

        with self._lock:
            if self._pass is None:
                self._pass = self._prepare_pass(inputs, partial(exact_rows, 0))
            if n_rows <= ROWS_PER_PASS:
                mean, std = self._pass(inputs, partial(exact_rows, 0))
            else:
                starts = range(0, n_rows, ROWS_PER_PASS)
                parts = [self._pass(_cut(inputs, start), partial(exact_rows, start)) for start in starts]
                mean, std = (torch.cat(both) for both in zip(*parts, strict=True))
        if self._target is not None:
            shift, scale = (torch.as_tensor(value).to(mean) for value in (self._target.mean, self._target.std))
            mean, std = mean * scale + shift, std * scale
        return (mean[0], std[0]) if single else (mean, std)

    def _is_single(self, rows: Inputs) -> bool:
        found = [tuple(tensor.shape) for tensor in parts_of(rows)]
        if found == self._shapes:
            return True
        if [shape[1:] for shape in found] == self._shapes and len({shape[:1] for shape in found}) == 1 and found[0][0]:
            return False
        expected = " and ".join(f"{shape} or (rows, {', '.join(map(str, shape))})" for shape in self._shapes)
        raise UserError(f"the input has the shape {' and '.join(map(str, found))}, expected {expected}")

    def _prepare_pass(self, inputs: Inputs, exact_rows: ExactRows) -> Pass:
        """Check the network on a few rows, read the posterior, and return inputs → (f, std)."""
        artifact, device = self._artifact, self._parameter.device
        memory = int(devices.free_memory(device) * devices.SAFE_SHARE)
        layout, sample = Layout.of(self._model), evenly_spaced(inputs, SAMPLE_ROWS)
        capture = prepare_capture(self._model, layout, sample, memory)
        checked = _checked(capture, sample, exact_rows(evenly_spaced_numbers(row_count(inputs), SAMPLE_ROWS)))
        fitted = read_fitted(artifact, layout.size, capture.n_outputs, device, memory)
        if fitted.rescale.b:
            return partial(_all_columns, checked or capture, fitted, read_prior(artifact, layout, device)[1])
        S, c = fitted.posterior.indices, 1.0 if fitted.rescale.c is None else fitted.rescale.c
        columns = ColumnPass(capture, S) if checked is None else CheckedColumnPass(checked, S)
        return partial(_some_columns, columns, fitted.posterior.serving_variance(), c)


def _checked(capture: Capture, sample: Inputs, exact_sample: Inputs) -> CheckedPass | None:
    """Passes that use float64 near a kink; None if they are float64 anyway or the network does not run in it."""
    if next(capture.model.parameters()).dtype != torch.float32:
        return None
    try:
        return CheckedPass.of(capture, in_float64(capture), sample, exact_sample)
    except (SublaplaceError, *devices.OUT_OF_MEMORY):
        raise
    except Exception:  # the network's own code may raise anything in another dtype
        return None


def _some_columns(
    columns: ColumnPass | CheckedColumnPass,
    variance_of: Callable[[Tensor], Tensor],
    c: float,
    inputs: Inputs,
    exact_rows: ExactRows,
) -> tuple[Tensor, Tensor]:
    """(f, std) from the gradients of S alone."""
    f, J_S = columns(inputs) if isinstance(columns, ColumnPass) else columns(inputs, exact_rows)
    variance = variance_of(J_S)
    require_finite(variance)
    return f, variance.clamp_(min=0.0).mul_(c).sqrt_().reshape(f.shape)


def _all_columns(
    passes: Capture | CheckedPass, fitted: Fitted, prior: Tensor, inputs: Inputs, exact_rows: ExactRows
) -> tuple[Tensor, Tensor]:
    """(f, std) where the remainder b·‖g outside S‖² needs all gradients."""
    if isinstance(passes, Capture):
        captured = passes(inputs)
    else:
        captured, near = passes(inputs)
        captured = passes.corrected(captured, near, exact_rows(near))[0] if near else captured
    posterior = fitted.posterior
    J_S, outside = fitted.columns(captured, prior)
    variance = fitted.rescale.apply(posterior.column_variance(J_S), outside)
    return captured.f, variance.clamp(min=0.0).sqrt().reshape(captured.f.shape)


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
        raise UserError(f"{path}: it was written by an older version", hint="fit it again with: sublaplace fit --force")
    if meta["parameters"] != parameter_table(Layout.of(model)):
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
