"""Has the network learnt anything from the rows it is given? Its own training error against the trivial guess."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...files.spec.data import DataSpec
from ...run.problem import Problem


@dataclass(frozen=True)
class Sanity:
    """The network at its training rows, and the best guess that looks at no input."""

    metric: str  # accuracy or rmse
    network: float
    guess: float
    guessed: str  # what the guess is

    @property
    def is_better(self) -> bool:
        return self.network > self.guess if self.metric == "accuracy" else self.network < self.guess

    @property
    def text(self) -> str:
        name = {"accuracy": "accuracy", "rmse": "RMSE"}[self.metric]
        return f"training rows: {name} {self.network:.4g} of the network, {self.guess:.4g} of {self.guessed}"

    def as_dict(self) -> dict[str, Any]:
        numbers = {"metric": self.metric, "network": self.network, "trivial": self.guess}
        return {"split": "train", **numbers, "trivial_guess": self.guessed, "better": self.is_better}


def sanity(problem: Problem) -> dict[str, Any]:
    """The part of a result that says it; also noted, with likely causes where something is wrong."""
    run = problem.run
    targets = run.targets("train")
    if targets is None:
        return {}
    f = problem.rows.train_outputs()
    found = of_labels(f, targets) if targets.ndim == 1 else of_numbers(f[:, problem.means], targets)
    if found.is_better:
        run.reporter.note(found.text)
    else:
        has_labels = run.split("train").classes is not None
        listed = _causes(run.project.spec.data, targets.ndim == 1, has_labels)
        causes = "; ".join(f"({letter}) {cause}" for letter, cause in zip("abcd", listed, strict=False))
        run.reporter.warn(f"{found.text}: the network is no better than that. Likely causes: {causes}")
    if targets.ndim == 2 and bool(((targets == 0) | (targets == 1)).all()):
        run.reporter.warn("task is regression, but all training targets are 0 or 1: for classes use task: binary")
    return {"sanity": found.as_dict()}


def of_labels(f: Tensor, targets: Tensor) -> Sanity:
    """Accuracy, against that of the most frequent class; one output is a logit."""
    predicted = (f[:, 0] > 0).long() if f.shape[1] == 1 else f.argmax(1)
    majority = targets.bincount().max() / len(targets)
    return Sanity("accuracy", float((predicted == targets).double().mean()), float(majority), "the most frequent class")


def of_numbers(f: Tensor, targets: Tensor) -> Sanity:
    """RMSE over all rows and outputs, against that of each target's mean."""
    network, guess = ((targets - each).square().mean().sqrt() for each in (f, targets.mean(0)))
    return Sanity("rmse", float(network), float(guess), "the mean of the targets")


def _causes(data: DataSpec, has_classes: bool, has_labels: bool) -> list[str]:
    # Texts and several arrays cannot be standardised.
    sides = [
        *([] if data.text is not None or _several_inputs(data) else ["input"]),
        *([] if has_classes else ["target"]),
    ]
    plain = [side for side in sides if getattr(data.standardise, side) == "none"]
    if not sides:
        scales = "its inputs were prepared in another way"
    elif plain:
        scales = f"it was trained on standardised rows, but data.standardise has no {' and no '.join(plain)}"
    else:
        scales = "it was trained on rows that were not standardised, or with other numbers"
    return [
        scales,
        *(["the network's outputs are in another order than the labels (data.classes)"] if has_labels else []),
        "the target is another column or array (data.columns.target, data.arrays.target)",
        "task is another one, or the weights are of another training",
    ]


def _several_inputs(data: DataSpec) -> bool:
    named = data.columns.input if data.columns is not None else data.arrays.input if data.arrays is not None else None
    return isinstance(named, dict) or (data.arrays is not None and isinstance(named, list))
