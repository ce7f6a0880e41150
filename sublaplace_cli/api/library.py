"""Sub-network Laplace approximations on tensors: rows → Ω → select → fit → variance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from torch import Tensor, nn

from .. import device as devices
from ..catalog import BY_NAME, METHODS, NAMES_PREFIX, load, load_check
from ..core.features import FeatureMap
from ..core.features.beside import Beside
from ..core.features.subset import Subset
from ..core.jacobian.blocks import DenseBlock
from ..core.jacobian.capture import SAMPLE_ROWS, Capture, prepare_capture
from ..core.jacobian.rows import BlockBuffer, HeldJacobian, Jacobian, RecomputedJacobian
from ..core.likelihoods import Likelihood
from ..core.network.forward import Inputs, evenly_spaced, last_linear, map_inputs, outputs, row_count
from ..core.network.layout import Layout
from ..core.omega.precision import Precision
from ..core.omega.row_sums import own_products
from ..core.posterior import path
from ..core.posterior.features import FeaturePosterior, fit_features
from ..core.posterior.full import FullPosterior, fit_full
from ..core.posterior.left_out import LeftOut, left_out
from ..core.posterior.rescale import Kind, RescaledPosterior, rescale_to_full
from ..core.posterior.subnet import SubnetPosterior
from ..core.selectors import Selection, SelectionProblem, SelectorFacts, checked
from ..errors import UserError, suggestion


@dataclass(frozen=True)
class NetworkJacobian(HeldJacobian):
    """Jacobian rows of a network, all in memory."""

    capture: Capture
    last_linear: tuple[str, ...]


@dataclass(frozen=True)
class StreamedJacobian(RecomputedJacobian):
    """Jacobian rows of a network that are recomputed on every read."""

    capture: Capture
    last_linear: tuple[str, ...]


NetworkRows = NetworkJacobian | StreamedJacobian


def jacobian(
    model: nn.Module,
    x: Inputs,
    *,
    hold: bool = True,
    like: NetworkRows | None = None,
    memory: int | None = None,
    rows_per_pass: int | None = None,
) -> NetworkRows:
    """The Jacobian of a network's outputs at some rows, in blocks that keep the structure of their layers.

    The network must be in eval mode, on the device and in the dtype of `x`. With `hold=False` the rows are recomputed
    on every read, which takes little memory. `like` is an earlier Jacobian of the same network: its checks against
    plain autograd are not repeated. `rows_per_pass` is the batch size; the default suits memory and caches.

    >>> J = jacobian(mlp(**{"in": 3, "hidden": [8], "out": 1}).eval(), torch.randn(20, 3))
    >>> J.outputs.shape
    torch.Size([20, 1])
    """
    _check(model, x, like, rows_per_pass)
    if like is None:
        sample = evenly_spaced(x, SAMPLE_ROWS)
        budget = _memory(memory, next(model.parameters()).device)
        capture = prepare_capture(model, Layout.of(model), sample, budget)
        names = tuple(last_linear(model, sample))
    else:
        capture, names = like.capture, like.last_linear
    n_rows = row_count(x)
    step = capture.rows_of_pass(n_rows) if rows_per_pass is None else rows_per_pass
    if not hold:
        with torch.no_grad():
            parts = [outputs(model, _cut(x, a, a + step)) for a in range(0, n_rows, step)]
        f = torch.cat(parts).double()
        compute = lambda a, b: capture(_cut(x, a, b)).blocks  # noqa: E731
        return StreamedJacobian(capture.layout, f, capture.templates, compute, step, capture, names)
    fs, held = [], BlockBuffer(n_rows)
    for a in range(0, n_rows, step):
        made = capture(_cut(x, a, a + step))
        fs.append(made.f)
        held.put(a, [block.expanded() for block in made.blocks])
    return NetworkJacobian(capture.layout, torch.cat(fs), held.blocks, capture, names)


def _check(model: nn.Module, x: Inputs, like: NetworkRows | None, rows_per_pass: int | None) -> None:
    if model.training:
        raise UserError("the network is in training mode", hint="call model.eval() first")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("the network has no trainable parameter", hint="check requires_grad")
    if row_count(x) == 0:
        raise UserError("there are no rows to differentiate")
    if like is not None and like.capture.model is not model:
        raise UserError("`like` is the Jacobian of another network", hint="leave it out")
    if rows_per_pass is not None and rows_per_pass < 1:
        raise UserError(f"rows_per_pass = {rows_per_pass}, expected at least 1")


def _cut(x: Inputs, start: int, stop: int) -> Inputs:
    return map_inputs(lambda t: t[start:stop], x)


def dense_jacobian(values: Tensor, f: Tensor | None = None) -> HeldJacobian:
    """A Jacobian (N, C, p) that was computed elsewhere; f are the outputs (N, C), which a classifier's Ω needs.

    >>> omega = precision(dense_jacobian(torch.randn(20, 1, 6)), Regression(0.5))
    >>> fit(omega, select(omega, "gradient", k=2)).indices.shape
    torch.Size([2])
    """
    if values.ndim != 3:
        raise UserError(f"the Jacobian has the shape {tuple(values.shape)}, expected (rows, outputs, parameters)")
    if f is not None and f.shape != values.shape[:2]:
        raise UserError(f"the outputs have the shape {tuple(f.shape)}, expected {tuple(values.shape[:2])}")
    layout = Layout.from_shapes([("theta", (values.shape[2],))])
    f = torch.zeros(values.shape[:2], dtype=torch.float64, device=values.device) if f is None else f.double()
    return HeldJacobian(layout, f, (DenseBlock(0, values),))


def precision(
    jacobian: Jacobian,
    likelihood: Likelihood,
    prior_precision: float | Tensor | Mapping[str, float] = 1.0,
    *,
    memory: int | None = None,
) -> Precision:
    """Ω = Σₙ Jₙᵀ Hₙ Jₙ + V of the training rows, as a small object; the matrix is never formed.

    `prior_precision` is one number, a vector (p,), or numbers by glob of the parameter names; the first match counts.

    >>> omega = precision(J, Regression(noise_variance=0.35), prior_precision={"*.bias": 10.0, "*": 1.0})
    >>> omega.data_diagonal().shape[0] == J.layout.size
    True
    """
    layout, device = jacobian.layout, jacobian.outputs.device
    likelihood.check_outputs(jacobian.outputs.shape[1])
    if likelihood.noise_variance is not None and not likelihood.noise_variance > 0:
        raise UserError(f"the noise variance is {likelihood.noise_variance:g}, expected a positive number")
    if isinstance(prior_precision, Mapping):
        prior = layout.vector(prior_precision)
    else:
        asked = torch.as_tensor(prior_precision, dtype=torch.float64)
        if asked.shape not in ((), (layout.size,)):
            raise UserError(f"the prior has the shape {tuple(asked.shape)}, expected one number or ({layout.size},)")
        prior = asked.expand(layout.size).clone()
    if not bool(((prior > 0) & prior.isfinite()).all()):
        raise UserError("prior precisions must be positive and finite")
    root = likelihood.root(jacobian.outputs)
    return Precision(jacobian, root, prior.to(device), _memory(memory, device))


def select(omega: Precision, method: str = "gradient", k: int = 1000, *, pool: str = "all", seed: int = 0) -> Selection:
    """The k parameters that a method chooses, in its order; `neural-linear` and `names:GLOB` take no k.

    >>> select(omega, "greedy", k=5).indices.shape
    torch.Size([5])
    """
    entry = BY_NAME if method.startswith(NAMES_PREFIX) else METHODS.get(method)
    if entry is None or entry.kind != "selector":
        names = [name for name, known in METHODS.items() if known.kind == "selector"]
        raise UserError(f"unknown selection method '{method}'", hint=suggestion(method, [*names, "names:GLOB"]))
    if entry.takes_k and not 1 <= k <= omega.layout.size:
        raise UserError(f"k = {k} is out of range: the network has {omega.layout.size} trainable parameters")
    pattern = method.removeprefix(NAMES_PREFIX) if entry is BY_NAME else None
    rows = omega.jacobian
    last = rows.last_linear if isinstance(rows, NetworkRows) else ()
    if (check := load_check(entry)) is not None:
        check(SelectorFacts(omega.layout, last, pool, pattern), k if entry.takes_k else None)
    diagonal = omega.data_diagonal()
    theta = torch.full_like(diagonal, float("nan"))  # of an unknown network
    if isinstance(rows, NetworkRows):
        theta = rows.layout.flatten(rows.capture.model)
    problem = SelectionProblem(omega, diagonal, diagonal, theta, last, seed, pool)
    return load(entry.entry)(problem, k if pattern is None else pattern)


def fit(
    omega: Precision, over: Selection | Tensor | FeatureMap, *, rescale: Kind = "none"
) -> SubnetPosterior | FeaturePosterior | RescaledPosterior:
    """The posterior over selected parameters or features; `rescale` fits its variances to those of the full posterior.

    >>> posterior = fit(omega, select(omega, "gradient", k=10), rescale="scale")
    >>> posterior.variance(J).shape == J.outputs.shape
    True
    >>> fit(omega, Sketch(k=10, seed=0)).variance(J).shape == J.outputs.shape
    True
    """
    if rescale not in get_args(Kind):
        raise UserError(f"unknown rescaling '{rescale}'", hint=suggestion(rescale, get_args(Kind)))
    posterior = fit_features(omega, _feature_map(omega, over))
    own, view = posterior.over_features, posterior.view
    if rescale == "none":
        return own if view.has_outside else posterior
    products = partial(own_products, omega.jacobian, omega.prior, omega.memory)
    found = rescale_to_full(own, view, rescale, omega, LeftOut(left_out(fit_full(omega), omega)), products)
    return RescaledPosterior(own, found, omega.prior, omega.memory, view)


def fit_path(omega: Precision, selection: Selection | Tensor, ks: Sequence[int]) -> list[SubnetPosterior]:
    """Posteriors over the first k of a selection, for several k; costs little more than the largest alone.

    >>> [len(posterior.indices) for posterior in fit_path(omega, select(omega, "gradient", k=10), [2, 5, 10])]
    [2, 5, 10]
    """
    S = _indices(omega, selection)
    for k in ks:
        if not 1 <= k <= len(S):
            raise UserError(f"k = {k} is out of range: the selection has {len(S)} parameters")
    return path.fit_path(omega, S, list(ks))


def variances(posteriors: Sequence[SubnetPosterior], jacobian: Jacobian) -> list[Tensor]:
    """`posterior.variance(jacobian)` of several posteriors of one path, which share most of the work.

    >>> a, b = variances(fit_path(omega, select(omega, "gradient", k=10), [2, 10]), J)
    >>> bool((a <= b + 1e-12).all())
    True
    """
    covariances = path.path_covariances(posteriors, jacobian, _memory(None, jacobian.outputs.device))
    return [covariance.diagonal(dim1=1, dim2=2) for covariance in covariances]


def full_posterior(omega: Precision) -> FullPosterior:
    """Full linearized Laplace: the posterior over all parameters, through the Gram matrix of the rows.

    >>> bool((full_posterior(omega).variance(J) > 0).all())
    True
    """
    return fit_full(omega)


def _indices(omega: Precision, selection: Selection | Tensor) -> Tensor:
    indices = selection.indices if isinstance(selection, Selection) else selection
    return checked(indices, omega.layout.size, "selection").to(omega.prior.device)


def _feature_map(omega: Precision, over: Selection | Tensor | FeatureMap) -> FeatureMap:
    if isinstance(over, Selection | Tensor):
        return Subset(_indices(omega, over))
    if not 1 <= over.k <= omega.layout.size:
        raise UserError(f"k = {over.k} is out of range: the network has {omega.layout.size} trainable parameters")
    subset = over.subset if isinstance(over, Beside) else over
    if isinstance(subset, Subset):
        checked(subset.indices, omega.layout.size, "Subset")
    return over


def _memory(memory: int | None, device: torch.device) -> int:
    """Memory budget in bytes: as requested, otherwise a safe share of the free memory."""
    return memory or int(devices.free_memory(device) * devices.SAFE_SHARE)
