"""Posteriors of sub-networks and of features with their rescaling, stored and reused."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ...catalog import FULL
from ...core.features import FeatureMap
from ...core.features.views import EntryView, View, view_of
from ...core.gaussian import Gaussian
from ...core.jacobian.capture import Captured
from ...core.linalg import row_products
from ...core.network.layout import Layout
from ...core.posterior.path import fit_path, path_covariances
from ...core.posterior.rescale import Kind, Rescale, rescale_to_full, without_rounding
from ...core.posterior.subnet import SubnetPosterior, subnet_bytes
from ...core.posterior.subnet_dual import SubnetDual
from ...core.posterior.subnet_primal import SubnetPrimal
from ...errors import Reason, RunError, UserError
from ...files.artifacts.artifact import Artifact, open_artifact
from ...files.artifacts.run_folder import file_stem
from ...files.data.datasets import MeanStd, Scales, Split
from ...sizes import format_bytes
from ..choosing.chosen import Chosen
from ..hyperparameters import posterior_facts, warn_if_ill_conditioned
from ..problem import Problem
from ..project import prior_vector
from ..store import Content, Key
from .stored_features import description_of, indices_of, read_features, size_of

MOST_COLUMNS_KEPT = 10_000  # names of input columns in the metadata of a posterior
OLDER, FIT_AGAIN = "it was written by an older version", "fit it again with: sublaplace fit --recompute"


@dataclass(frozen=True)
class Fitted:
    """A posterior over the columns of a view, and how its variances are rescaled."""

    view: View
    posterior: SubnetPosterior
    rescale: Rescale
    noise_factor: float = 1.0  # on the noise variance of new rows
    held_out: Tensor | None = None  # its covariances at the rows that it was calibrated on, if it was just now

    def columns(self, captured: Captured, prior: Tensor) -> tuple[Tensor, Tensor | None]:
        """The view's columns (k, m·C) of one pass, and the products of a remainder (m, C, C) if there is one."""
        J_S = self.view.columns(captured.blocks)
        if not self.rescale.b:
            return J_S, None
        products: Any = sum(block.own_products(prior[block.span]) for block in captured.blocks)
        if not self.view.has_outside:
            return J_S, products
        inside = row_products(J_S * self.posterior.prior.rsqrt().unsqueeze(1), captured.f.shape[1])
        return J_S, without_rounding(products - inside, products)


def paths(selections: Sequence[Chosen]) -> list[list[Chosen]]:
    """Selections grouped into chains of prefixes, each chain from short to long."""
    found: list[list[Chosen]] = []
    for chosen in sorted(selections, key=lambda chosen: chosen.k):
        home = next((path for path in found if _extends(chosen, path[-1])), None)
        if home is None:
            found.append([chosen])
        else:
            home.append(chosen)
    return found


def _extends(long: Chosen, short: Chosen) -> bool:
    if short.method != long.method or short.indices is None or long.indices is None:
        return False  # features of different k have nothing in common
    return torch.equal(short.indices, long.indices[: short.k])


def variant(name: str, rescale: str) -> str:
    """The name of an artifact that depends on the rescaling: one per kind, so none overwrites another."""
    return name if rescale == "none" else f"{name}-{rescale}"


def fit(problem: Problem, path: Sequence[Chosen]) -> list[Fitted]:
    """Posteriors over selections, each a prefix of the next one."""
    run = problem.run
    facts = {
        "link": run.link,
        "rescaling": run.rescale,
        "folds": problem.calibrator.n_folds if run.calibrates else None,
    }
    names = [variant(file_stem("posterior", chosen.method, chosen.k), run.rescale) for chosen in path]
    rescales = run.fitted_rescale != "none"
    inputs = run.full_inputs if rescales else {}
    keys = [
        Key("posterior", name, {**chosen.inputs, **inputs}, facts | {"method": chosen.method}, "fit")
        for name, chosen in zip(names, path, strict=True)
    ]

    def read(artifact: Artifact) -> Fitted:
        return read_fitted(artifact, run.layout, problem.hyperparameters.prior, run.passes.n_outputs, run.memory)

    ks, views = [chosen.k for chosen in path], [problem.view(chosen) for chosen in path]

    def make(missing: list[int]) -> list[Fitted]:
        # Fit the whole path even if only one is missing: then no bit depends on which artifacts already exist.
        made = fit_path(views[-1].precision(problem.omega), views[-1].indices, ks)
        own = [_view_of(posterior, view) for posterior, view in zip(made, views, strict=True)]
        return _rescaled(problem, own, made, missing)

    def write(fitted: Fitted) -> Content | None:
        number = ks.index(len(fitted.posterior.indices))
        return _content(problem, names[number], path[number].features, fitted)

    return [fitted.value for fitted in run.store.get_all(keys, make, read, write)]


def _view_of(posterior: SubnetPosterior, view: View) -> View:
    """With the columns in the order of the posterior."""
    return EntryView(posterior.indices) if view.has_outside else view


def _rescaled(
    problem: Problem, views: Sequence[View], posteriors: Sequence[SubnetPosterior], missing: list[int]
) -> list[Fitted]:
    if problem.run.calibrates:
        return _calibrated(problem, views, posteriors, missing)
    return [Fitted(views[i], posteriors[i], _rescale(problem, views[i], posteriors[i])) for i in missing]


def _rescale(problem: Problem, view: View, posterior: SubnetPosterior) -> Rescale:
    kind = problem.run.rescale
    if kind == "none":
        return Rescale()
    full = problem.full.left_out
    with problem.run.store.timed("rescale"):
        return rescale_to_full(
            *(posterior, view, cast(Kind, kind), problem.omega),
            *(full, lambda: problem.full.left_out_products, problem.means),
        )


def _calibrated(
    problem: Problem, views: Sequence[View], posteriors: Sequence[SubnetPosterior], missing: list[int]
) -> list[Fitted]:
    """With the factor that all held-out rows together choose: what a posterior keeps for new rows."""
    rows, calibrator = problem.held_out, problem.calibrator
    covariances = path_covariances(posteriors, views[-1].rows(rows.jacobian), problem.run.memory)
    with problem.run.store.timed("calibrate"):
        factors = [calibrator.together(Gaussian(rows.f, covariance)) for covariance in covariances]
    return [
        Fitted(views[i], posteriors[i], Rescale(factors[i].value), factors[i].noise, covariances[i]) for i in missing
    ]


def _content(problem: Problem, name: str, features: FeatureMap, fitted: Fitted) -> Content | None:
    posterior, run = fitted.posterior, problem.run
    warn_if_ill_conditioned(run.reporter, name, posterior.condition)
    train = run.split("train")
    shapes, scales = _scales(train)
    numbers: dict[str, Any] = {"form": posterior.form, "freedom": posterior.freedom, "condition": posterior.condition}
    numbers |= {"rescale": fitted.rescale.c, "remainder": fitted.rescale.b, "n_train": len(train)}
    numbers |= {"noise_factor": fitted.noise_factor}
    numbers |= {"row_outputs": run.passes.over("train").row_outputs}
    numbers |= {} if train.classes is None else {"classes": list(train.classes)}
    if 0 < len(train.columns) <= MOST_COLUMNS_KEPT:
        columns = run.project.spec.data.columns
        is_rest = columns is not None and columns.input == "rest"
        numbers |= {"columns": list(train.columns), **({"rest": list(train.columns)} if is_rest else {})}
    numbers |= {"scale_shapes": shapes, "serving": run.serving, **posterior_facts(problem.hyperparameters)}
    numbers |= description_of(features)
    tensors = posterior.tensors()
    if not fitted.view.has_outside:  # its columns are numbered from 0, with prior precision 1
        tensors = {name: tensor for name, tensor in tensors.items() if name not in ("indices", "prior")}
        tensors |= indices_of(features)
    tensors |= scales
    return (tensors, numbers) if run.store.fits(name, tensors) else None


def _scales(split: Split) -> tuple[dict[str, list[int]], dict[str, Tensor]]:
    """Mean and std that the rows were standardised with, needed to standardise new rows."""
    known = {"input": split.preparation.scale, "target": split.target_scale}
    shapes: dict[str, list[int]] = {}
    tensors: dict[str, Tensor] = {}
    for side, scale in known.items():
        if scale is not None:
            shapes[side] = list(np.shape(scale.mean))
            tensors[f"{side}_mean"] = torch.from_numpy(np.array(scale.mean, dtype=np.float64).reshape(-1))
            tensors[f"{side}_std"] = torch.from_numpy(np.array(scale.std, dtype=np.float64).reshape(-1))
    return shapes, tensors


def open_posterior(path: Path, where: str) -> Artifact:
    """The artifact of a sub-network's posterior; that of the full one is refused."""
    artifact = open_artifact(path, "posterior")
    if artifact.meta["method"] == FULL:
        raise UserError(
            f"{where}: the full posterior cannot predict without its training rows",
            hint="use one over a sub-network: sublaplace fit --method gradient --k 1000",
        )
    return artifact


def require_room_for(artifact: Artifact, memory: int) -> None:
    """Refuse a posterior that is larger than the memory budget, before anything of it is read."""
    shapes = {name: entry["shape"] for name, entry in artifact.meta["tensors"].items()}
    needed = subnet_bytes(size_of(artifact), shapes["factor"][0], artifact.meta["form"])
    if needed > memory:
        message = f"{artifact.path} needs about {format_bytes(needed)}, more than the {format_bytes(memory)} allowed"
        raise RunError(message, reason=Reason.NO_ROOM_FOR_SUBNET)


def read_fitted(artifact: Artifact, layout: Layout, prior: Tensor, n_outputs: int, memory: int) -> Fitted:
    """A posterior over parameters or features from its artifact, for the prior that it was fitted with (p,)."""
    meta = artifact.meta
    features, device = read_features(artifact, layout.size, prior.device), prior.device
    view, k = view_of(features, layout, prior, memory), features.k
    rows = meta["n_train"] * (meta.get("row_outputs") or n_outputs)
    # The columns of a view of features have prior precision 1.
    own_prior = artifact.tensor("prior", (k,)).to(device) if view.has_outside else torch.ones(k).to(prior)
    side = rows if meta["form"] == SubnetDual.form else k
    factor = artifact.tensor("factor", (side, side)).to(device).T.contiguous().T  # the memory layout of a fitted factor
    rest = (meta["condition"], lambda: meta["freedom"], memory)
    rescale = Rescale(meta["rescale"], meta["remainder"])
    if meta["form"] == SubnetPrimal.form:
        return Fitted(view, SubnetPrimal(view.indices, own_prior, factor, *rest), rescale, meta["noise_factor"])
    columns = artifact.tensor("columns", (k, rows)).to(device)
    return Fitted(view, SubnetDual(view.indices, own_prior, factor, *rest, columns), rescale, meta["noise_factor"])


def read_prior(artifact: Artifact, layout: Layout, device: torch.device) -> tuple[Any, Tensor]:
    """The prior precision that a posterior was fitted with: one number or by glob, and as a vector (p,)."""
    stored = artifact.meta["prior_precision"]
    prior = dict(stored) if isinstance(stored, list) else stored  # (glob, number) in order
    return prior, prior_vector(prior, layout, artifact.path).to(device)


def scales_of(artifact: Artifact) -> Scales:
    """What a posterior keeps of its training rows beside the numbers: standardisation, classes and input columns."""
    found = (artifact.meta.get(name) for name in ("classes", "rest"))
    classes, rest = (None if names is None else tuple(names) for names in found)
    return Scales(_scale(artifact, "input"), _scale(artifact, "target"), classes, rest)


def _scale(artifact: Artifact, side: str) -> MeanStd | None:
    if side not in artifact.meta["scale_shapes"]:
        return None
    mean, std = (np.asarray(artifact.tensor(f"{side}_{what}").numpy()) for what in ("mean", "std"))
    shape = tuple(artifact.meta["scale_shapes"][side])
    return MeanStd(mean.reshape(shape), std.reshape(shape))
