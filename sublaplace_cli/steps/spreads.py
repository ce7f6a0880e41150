"""Epistemic variances on the test rows: of sub-networks, of the full posterior, of the references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.metrics import Predictive
from ..core.omega.row_sums import column_chunks
from ..core.posterior.posterior import diagonal_freedom, diagonal_variance, path_variances
from ..core.posterior.rescale import Rescale, outside_norms
from ..core.posterior.sampling import draw_outputs, draw_parameters
from ..files.artifacts.artifact import Artifact, write_artifact
from ..files.artifacts.run_folder import file_stem
from .ensemble import ensemble_spread
from .fit import Fitted, begins, posteriors_of
from .full import FULL, full_posterior_of, variant
from .jacobians import precision_of, scores_of
from .kfac import kfac_spread
from .passes import jacobian_of
from .request import Choice
from .rescaling import constant_variance, norm_factor, squared_norms
from .select import Chosen, selections_of
from .session import Session

MAP = "map"


@dataclass(frozen=True)
class Spread:
    """Epistemic variances of one method on the test rows, and how much the data say about its parameters."""

    method: str
    k: int | None
    variance: Tensor  # (M, C)
    freedom: float | None  # None where there is no posterior to ask
    chosen: Chosen | None = None  # of a sub-network
    rescale: float | None = 1.0  # c: None where the sub-network's variance is 0 on all training rows
    remainder: float = 0.0  # b
    mean: Tensor | None = None  # (M, C), where it is not the network's own
    samples: Tensor | None = None  # (count, M, C), where --samples asks for them

    @property
    def is_a_posterior(self) -> bool:
        """Whether Theorem 1 holds for it."""
        return self.chosen is not None and (self.rescale, self.remainder) == (1.0, 0.0)

    @property
    def name(self) -> str:
        return self.method if self.k is None else f"{self.method} (k = {self.k})"


def spreads_of(session: Session, wanted: list[Choice], f: Tensor, full: Spread | None) -> list[Spread]:
    """One for each choice, in their order."""
    selections = selections_of(session, [choice for choice in wanted if choice.call.selects])
    subnets = _subnets(session, list(selections.values()))
    return [
        subnets[selections[choice].digest] if choice in selections else _reference(session, choice.call.name, f, full)
        for choice in wanted
    ]


def full_spread(session: Session) -> Spread:
    """Of the full posterior: read back where it is there."""
    stem = file_stem("predictions", FULL, session.layout.size)
    found = _reuse(session, stem, {}, method=FULL, k=session.layout.size)
    if found is not None:
        return _read(session, found, FULL, session.layout.size)
    posterior = full_posterior_of(session)
    norms = squared_norms(session, "test")
    with session.timed("full"):
        variance = posterior.variance(jacobian_of(session, "test"), norms)
    return Spread(FULL, session.layout.size, variance, posterior.freedom)


def _subnets(session: Session, selections: list[Chosen]) -> dict[str, Spread]:
    """By digest of the selection; those that begin one another share one fit and one look at the test rows."""
    spreads = {}
    if session.settings.samples is None:  # draws are not kept
        found = {chosen.digest: _reuse_subnet(session, chosen) for chosen in selections}
        spreads = {digest: spread for digest, spread in found.items() if spread is not None}
    for path in _paths(selections):
        # All of a path or none of it: then the bits do not depend on where an earlier run was cut off.
        missing = [chosen.digest for chosen in path if chosen.digest not in spreads]
        if not missing:
            continue
        fitted = posteriors_of(session, path)
        posteriors = [q.posterior for q in fitted]
        same_order = all(torch.equal(q.indices, posteriors[-1].indices[: len(q.indices)]) for q in posteriors)
        with session.timed("predict"):
            groups = [posteriors] if same_order else [[posterior] for posterior in posteriors]
            test = jacobian_of(session, "test")
            variances = [v for group in groups for v in path_variances(group, test, session.memory)]
        for chosen, q, variance in zip(path, fitted, variances, strict=True):
            if chosen.digest not in missing:
                continue
            if q.rescale.b:
                norms = squared_norms(session, "test")
                outside = outside_norms(test, norms, q.posterior.indices, session.prior, session.memory)
            else:
                outside = variance.new_zeros(variance.numel())
            samples = _samples(session, q, outside) if session.settings.samples is not None else None
            spreads[chosen.digest] = Spread(
                method=chosen.method,
                k=chosen.k,
                variance=q.rescale.apply(variance, outside.reshape(variance.shape)),
                freedom=q.posterior.freedom,
                chosen=chosen,
                rescale=q.rescale.c,
                remainder=q.rescale.b,
                samples=samples,
            )
    return spreads


def _samples(session: Session, fitted: Fitted, outside: Tensor) -> Tensor:
    """Draws of the outputs at the test rows (count, M, C)."""
    test, count, seed = jacobian_of(session, "test"), session.settings.samples or 0, session.settings.seed
    with session.timed("predict"):
        theta = draw_parameters(fitted.posterior, count, seed)
        chunks = column_chunks(test, fitted.posterior.indices, session.memory)
        draws = torch.cat([draw_outputs(J_S, theta) for _, J_S in chunks])  # (M·C, count)
        own = rescaled_draws(draws, fitted.rescale, outside, torch.Generator().manual_seed(seed + 1))
        return test.outputs + own.T.reshape(count, *test.outputs.shape)


def rescaled_draws(draws: Tensor, rescale: Rescale, outside: Tensor, generator: torch.Generator) -> Tensor:
    """Draws (m·C, count) whose variance is the rescaled one: b·‖g outside S‖² comes as a part of each row's own."""
    scaled = draws * (1.0 if rescale.c is None else rescale.c) ** 0.5
    if not rescale.b:
        return scaled
    noise = torch.randn(draws.shape, dtype=torch.float64, generator=generator).to(draws.device)
    return scaled + (rescale.b * outside).sqrt().unsqueeze(1) * noise


def _paths(selections: list[Chosen]) -> list[list[Chosen]]:
    """Selections grouped by which begins which, each group from short to long."""
    paths: list[list[Chosen]] = []
    for chosen in sorted(selections, key=lambda chosen: chosen.k):
        home = next((path for path in paths if path[-1].method == chosen.method and begins(path[-1], chosen)), None)
        if home is None:
            paths.append([chosen])
        else:
            home.append(chosen)
    return paths


def _reference(session: Session, name: str, f: Tensor, full: Spread | None) -> Spread:
    if name == FULL:
        assert full is not None, "it was asked for"
        return full
    if name == MAP:
        return Spread(MAP, None, torch.zeros_like(f), 0.0)
    if name == "ensemble":
        mean, variance = ensemble_spread(session)
        session.report.note("ensemble: its mean is another one; its w2 compares spreads only")
        return Spread(name, None, variance, None, mean=mean)
    if name == "kfac":
        variance, freedom = kfac_spread(session)
        return Spread(name, None, variance, freedom)
    if name == "constant":
        return Spread(name, None, torch.full_like(f, constant_variance(session)), None)
    if name == "norm":
        b = norm_factor(session)
        return Spread(name, None, b * squared_norms(session, "test").reshape(f.shape), None, remainder=b)
    data_diagonal, precision = scores_of(session).data_diagonal, precision_of(session)
    with session.timed("predict"):
        variance = diagonal_variance(precision, data_diagonal, jacobian_of(session, "test"))
    return Spread("diagonal", None, variance, diagonal_freedom(precision, data_diagonal))


def _stem(session: Session, method: str, k: int, is_subnet: bool) -> str:
    stem = file_stem("predictions", method, k)
    return variant(session, stem) if is_subnet else stem


def _reuse_subnet(session: Session, chosen: Chosen) -> Spread | None:
    stem = _stem(session, chosen.method, chosen.k, is_subnet=True)
    found = _reuse(session, stem, {"indices": chosen.digest}, method=chosen.method, k=chosen.k)
    return None if found is None else _read(session, found, chosen.method, chosen.k, chosen)


def _reuse(session: Session, stem: str, inputs: dict[str, str], **expected: Any) -> Artifact | None:
    found = None if session.settings.force else session.open_folder().find(stem, "predictions", **expected)
    lacks_full = session.settings.full == "exact" and found is not None and "std_full" not in found.meta["tensors"]
    if found is None or found.meta["inputs"] != inputs or lacks_full:
        return None
    session.report.note(f"reusing {stem}")
    session.artifacts[stem] = str(found.path)
    return found


def _read(session: Session, found: Artifact, method: str, k: int, chosen: Chosen | None = None) -> Spread:
    shape = (len(session.split("test")), session.n_outputs)
    variance = found.tensor("variance", shape).to(session.device)
    c, b = found.meta["rescale"], found.meta["remainder"]
    return Spread(method, k, variance, found.meta["freedom"], chosen=chosen, rescale=c, remainder=b)


def store_predictions(session: Session, spread: Spread, known: Predictive) -> None:
    """Mean, std, std_full and target for each test row and output; the variance beside them keeps all its digits."""
    if spread.k is None:
        return
    stem = _stem(session, spread.method, spread.k, spread.chosen is not None)
    if stem in session.artifacts:
        return
    tensors = {"mean": known.f, "std": spread.variance.clamp(min=0).sqrt(), "variance": spread.variance}
    if known.std_full is not None:
        tensors["std_full"] = known.std_full
    if known.targets is not None:
        tensors["target"] = known.targets
    inputs = {"indices": spread.chosen.digest} if spread.chosen is not None else {}
    numbers = {"freedom": spread.freedom, "rescale": spread.rescale, "remainder": spread.remainder}
    meta = session.describe(inputs, method=spread.method, k=spread.k, **numbers)
    write_artifact(session.open_folder().file(stem), "predictions", meta, tensors)
    session.artifacts[stem] = str(session.open_folder().file(stem))


def stems_behind(session: Session, spread: Spread) -> list[str]:
    """Artifacts that a spread rests on, as far as they are kept."""
    if spread.k is None:
        return []
    stems = [file_stem(kind, spread.method, spread.k) for kind in ("indices", "posterior", "predictions")]
    return [stems[0], *(variant(session, stem) for stem in stems[1:])] if spread.chosen is not None else stems
