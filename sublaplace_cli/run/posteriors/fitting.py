"""Posteriors of sub-networks with their rescaling, stored and reused."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ...catalog import FULL
from ...core.gaussian import Gaussian
from ...core.jacobian.capture import Captured
from ...core.linalg import row_products
from ...core.network.layout import Layout
from ...core.omega.row_sums import columns_of_blocks
from ...core.posterior.path import fit_path, path_covariances
from ...core.posterior.rescale import Kind, Rescale, rescale_to_full, without_rounding
from ...core.posterior.subnet import SubnetPosterior, subnet_bytes
from ...core.posterior.subnet_dual import SubnetDual
from ...core.posterior.subnet_primal import SubnetPrimal
from ...core.selectors import checked
from ...errors import Reason, RunError, UserError
from ...files.artifacts.artifact import Artifact, open_artifact
from ...files.artifacts.run_folder import file_stem
from ...files.data.datasets import MeanStd, Scales, Split
from ...sizes import format_bytes
from ..problem import Problem, posterior_facts, warn_if_ill_conditioned
from ..project import prior_vector
from ..selections import Chosen
from ..store import Content, Key

MOST_COLUMNS_KEPT = 10_000  # names of input columns in the metadata of a posterior
OLDER, FIT_AGAIN = "it was written by an older version", "fit it again with: sublaplace fit --recompute"


@dataclass(frozen=True)
class Fitted:
    """A sub-network's posterior, and how its variances are rescaled."""

    posterior: SubnetPosterior
    rescale: Rescale
    noise_factor: float = 1.0  # on the noise variance of new rows
    held_out: Tensor | None = None  # its covariances at the rows that it was calibrated on, if it was just now

    def columns(self, captured: Captured, prior: Tensor) -> tuple[Tensor, Tensor | None]:
        """J_Sᵀ (k, m·C) of one pass, and G V⁻¹ Gᵀ outside S (m, C, C) if the rescaling needs it."""
        J_S = columns_of_blocks(captured.blocks, self.posterior.indices, captured.f.numel())
        if not self.rescale.b:
            return J_S, None
        products: Any = sum(block.own_products(prior[block.span]) for block in captured.blocks)
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
    return short.method == long.method and torch.equal(short.indices, long.indices[: short.k])


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
    keys = [
        Key("posterior", name, {"indices": chosen.digest}, facts | {"method": chosen.method}, "fit")
        for name, chosen in zip(names, path, strict=True)
    ]

    def read(artifact: Artifact) -> Fitted:
        return read_fitted(artifact, run.layout.size, run.passes.n_outputs, run.device, run.memory)

    # Fit the whole path even if only one is missing: then no bit depends on which artifacts already exist.
    omega, indices, ks = problem.omega, path[-1].indices, [chosen.k for chosen in path]
    stored = run.store.get_all(
        keys,
        lambda missing: _rescaled(problem, fit_path(omega, indices, ks), missing),
        read,
        lambda fitted: _content(problem, names[ks.index(len(fitted.posterior.indices))], fitted),
    )
    return [fitted.value for fitted in stored]


def _rescaled(problem: Problem, posteriors: Sequence[SubnetPosterior], missing: list[int]) -> list[Fitted]:
    if problem.run.calibrates:
        return _calibrated(problem, posteriors, missing)
    return [Fitted(posteriors[i], _rescale(problem, posteriors[i])) for i in missing]


def _rescale(problem: Problem, posterior: SubnetPosterior) -> Rescale:
    kind = problem.run.rescale
    if kind == "none":
        return Rescale()
    full, products = problem.full_left_out, problem.train_products
    with problem.run.store.timed("rescale"):
        return rescale_to_full(posterior, cast(Kind, kind), problem.omega, full, products, problem.means)


def _calibrated(problem: Problem, posteriors: Sequence[SubnetPosterior], missing: list[int]) -> list[Fitted]:
    """With the factor that all held-out rows together choose: what a posterior keeps for new rows."""
    rows, calibrator = problem.held_out, problem.calibrator
    covariances = path_covariances(posteriors, rows.jacobian, problem.run.memory)
    with problem.run.store.timed("calibrate"):
        factors = [calibrator.together(Gaussian(rows.f, covariance)) for covariance in covariances]
    return [Fitted(posteriors[i], Rescale(factors[i].value), factors[i].noise, covariances[i]) for i in missing]


def _content(problem: Problem, name: str, fitted: Fitted) -> Content | None:
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
    tensors = {**posterior.tensors(), **scales}
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
    needed = subnet_bytes(shapes["indices"][0], shapes["factor"][0], artifact.meta["form"])
    if needed > memory:
        message = f"{artifact.path} needs about {format_bytes(needed)}, more than the {format_bytes(memory)} allowed"
        raise RunError(message, reason=Reason.NO_ROOM_FOR_SUBNET)


def read_fitted(artifact: Artifact, n_params: int, n_outputs: int, device: torch.device, memory: int) -> Fitted:
    """A sub-network's posterior from its artifact."""
    meta = artifact.meta
    indices = checked(artifact.tensor("indices"), n_params, str(artifact.path)).to(device)
    k, rows = len(indices), meta["n_train"] * (meta.get("row_outputs") or n_outputs)
    prior = artifact.tensor("prior", (k,)).to(device)
    side = rows if meta["form"] == SubnetDual.form else k
    factor = artifact.tensor("factor", (side, side)).to(device).T.contiguous().T  # the memory layout of a fitted factor
    rest = (meta["condition"], lambda: meta["freedom"], memory)
    rescale = Rescale(meta["rescale"], meta["remainder"])
    if meta["form"] == SubnetPrimal.form:
        return Fitted(SubnetPrimal(indices, prior, factor, *rest), rescale, meta["noise_factor"])
    columns = artifact.tensor("columns", (k, rows)).to(device)
    return Fitted(SubnetDual(indices, prior, factor, *rest, columns), rescale, meta["noise_factor"])


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
