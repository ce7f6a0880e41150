"""`sublaplace jacobians`: outputs, Jacobians and scores, made once and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..catalog import LIKELIHOODS, load
from ..core.omega.precision import Precision
from ..core.omega.row_sums import squared_gradients
from ..errors import UserError
from ..files.artifacts.artifact import write_artifact
from .inputs import MARGLIK, targets_of
from .passes import jacobian_of
from .session import Session

TUNED_NOISE = "noise-tuned"  # where the noise that `marglik` found is kept
NOISE_FLOOR = 1e-3


@dataclass(frozen=True)
class Scores:
    """Squared gradients (p,): over the reference rows, and diag(Ω) − V of the training rows."""

    score: Tensor
    data_diagonal: Tensor
    digest: str


def run(session: Session) -> dict[str, Any]:
    """Make what `jacobians` was asked for; returns what it prints."""
    settings = session.settings
    if settings.scores_only:
        scores_of(session)
    else:
        wanted = ("train", "test", "reference") if settings.split == "all" else (settings.split,)
        for name in dict.fromkeys(session.split_name(name) for name in wanted if name in session.splits):
            jacobian_of(session, name)
        if settings.split == "all":
            scores_of(session)
    return {
        "n_params": session.layout.size,
        "n_outputs": session.n_outputs,
        "n_train": len(session.split("train")),
        "task": session.task,
        "noise_variance": noise_variance(session) if settings.split == "all" or settings.scores_only else None,
    }


def noise_variance(session: Session) -> float | None:
    """σ₀²: a number of the spec, or the residual mean square; None for classification."""
    asked = session.spec.spec.posterior.noise_variance
    if session.task != "regression":
        return None
    if isinstance(asked, (int, float)):
        return float(asked)
    if TUNED_NOISE in session.kept:
        return session.kept[TUNED_NOISE]
    name = "train" if asked in ("auto", MARGLIK) else "test"
    key = f"noise-{name}"
    if key not in session.kept:
        split = session.split(name)
        targets = targets_of(split, session.device)
        if targets is None:
            raise UserError(f"posterior.noise_variance: the {name} rows have no targets to take it from")
        mean_square = float((targets - outputs_of(session, name)).square().mean())
        session.kept[key] = max(mean_square, NOISE_FLOOR) if name == "train" else mean_square
        if session.kept[key] <= 0:
            raise UserError("posterior.noise_variance: the residuals of the test rows are all 0", hint="give a number")
    return session.kept[key]


def outputs_of(session: Session, name: str) -> Tensor:
    """f of a split (N, C): from its Jacobian where this command has one, else by plain forward passes.

    The noise of the test rows always takes the second way, so that every command finds the same number.
    """
    name = session.split_name(name)
    if f"jacobians-{name}" in session.kept and name == "train":
        return jacobian_of(session, name).outputs
    key = f"outputs-{name}"
    if key not in session.kept:
        session.kept[key] = session.reader.outputs(session.model, session.split(name))
    return session.kept[key]


def precision_of(session: Session) -> Precision:
    """Ω of the training rows."""
    if "precision" not in session.kept:
        jacobian = jacobian_of(session, "train")
        root = load(LIKELIHOODS[session.task])(jacobian.outputs, noise_variance(session) or 1.0)
        session.kept["precision"] = Precision(
            jacobian, root, session.prior, session.memory, session.report.progress, session.gram_dtype
        )
    return session.kept["precision"]


def scores_of(session: Session) -> Scores:
    """Scores: read back where they are there, else computed and kept."""
    if "scores" not in session.kept:
        found = None if session.settings.force else session.open_folder().find("scores", "scores")
        if found is None:
            with session.timed("scores"):
                _make_scores(session)
            found = session.open_folder().find("scores", "scores")
            assert found is not None, "it was just written"
        else:
            session.report.note("reusing scores")
        session.artifacts["scores"] = str(found.path)
        shape = (session.layout.size,)
        score, diagonal = (found.tensor(q, shape).to(session.device) for q in ("score", "diagonal"))
        session.kept["scores"] = Scores(score, diagonal - session.prior, found.digest)
    return session.kept["scores"]


def score_and_diagonal(session: Session) -> tuple[Tensor, Tensor]:
    """The score that methods rank by, and diag(Ω) − V; neither is kept."""
    weighted = session.settings.score == "weighted"
    data_diagonal = _squares(session, "train", True)
    reference = session.reference
    if weighted:
        score = data_diagonal if reference == "train" else _squares(session, reference, True)
    else:  # Algorithm 1 to the letter: a mean, without the output Hessian
        score = _squares(session, reference, False) / len(session.split(reference))
    return score, data_diagonal


def _make_scores(session: Session) -> None:
    score, data_diagonal = score_and_diagonal(session)
    meta = session.describe({}, score=session.settings.score, reference=session.reference)
    tensors = {"score": score, "diagonal": data_diagonal + session.prior}
    write_artifact(session.open_folder().file("scores"), "scores", meta, tensors)


def _squares(session: Session, name: str, weighted: bool) -> Tensor:
    """Σₙ diag(JₙᵀHₙJₙ) over a split; H = I where unweighted."""
    jacobian = jacobian_of(session, name)
    sums = session.kept.get(f"totals-{name}")
    if sums is not None:
        total = sums[weighted]
    else:
        root = load(LIKELIHOODS[session.task])(jacobian.outputs, 1.0) if weighted else None
        total = squared_gradients(jacobian, root, session.memory)
    return total / (noise_variance(session) or 1.0) if weighted else total
