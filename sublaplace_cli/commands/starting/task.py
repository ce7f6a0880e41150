"""The task, from the targets and the number of outputs; and the trivial guess that any network should beat."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .inference import Inference

MOST_CLASSES = 20  # of whole numbers that are taken for classes, if nothing else says so


def guess_task(cells: Sequence[str], n_outputs: int | None, asked: str | None) -> Inference:
    if asked is not None:
        return Inference("task", asked, "sure", "you said so")
    distinct = in_order(cells)
    if not distinct:
        return Inference("task", "regression", "check", "there are no targets")
    numbers = _numbers(distinct)
    if numbers is None:
        if len(distinct) == 2 and n_outputs in (None, 1):
            return Inference("task", "binary", "sure", f"two labels: {distinct[0]!a} and {distinct[1]!a}")
        return Inference("task", "multiclass", "sure", f"{len(distinct)} labels")
    whole = bool((numbers == np.round(numbers)).all())
    if whole and set(numbers) <= {0.0, 1.0}:
        if n_outputs is not None and n_outputs > 1:
            return Inference(
                "task", "multiclass", "sure", f"targets are 0 and 1, and the network has {n_outputs} outputs"
            )
        return Inference("task", "binary", "sure" if n_outputs == 1 else "likely", "targets are 0 and 1")
    if whole and n_outputs is not None and n_outputs > 2 and numbers.min() >= 0 and numbers.max() < n_outputs:
        return Inference("task", "multiclass", "sure", f"whole targets below {n_outputs}, the number of outputs")
    if whole and len(distinct) == (2 if n_outputs == 1 else n_outputs):
        shown = ", ".join(distinct[:3]) + (", …" if len(distinct) > 3 else "")
        return Inference("task", "binary" if n_outputs == 1 else "multiclass", "likely", f"targets are only {shown}")
    if whole and n_outputs is None and len(distinct) <= MOST_CLASSES and numbers.min() == 0:
        return Inference("task", "multiclass", "likely", f"targets are {len(distinct)} whole numbers from 0 on")
    return Inference("task", "regression", "sure" if not whole else "likely", f"targets have {len(distinct)} values")


def _numbers(cells: Sequence[str]) -> np.ndarray | None:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return None


def in_order(cells: Sequence[str]) -> list[str]:
    """The distinct ones, sorted: by size if they are numbers."""
    distinct = sorted(set(cells))
    return distinct if _numbers(distinct) is None else sorted(distinct, key=float)


def class_numbers(cells: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """Targets of a classification as numbers: the place of their label, or their own if there are no labels."""
    numbers = _numbers(cells)
    order = {cell: place for place, cell in enumerate(classes or in_order(cells))}
    return np.array([order[cell] for cell in cells]) if classes or numbers is None else numbers.astype(np.int64)


def rows_in_order(cells: Sequence[str]) -> bool:
    """Whether the rows are sorted or grouped by their target, so that the last rows are unlike the first."""
    numbers, distinct = _numbers(cells), len(set(cells))
    if distinct < 2:
        return False
    changes = sum(one != two for one, two in pairwise(cells))
    if changes < 2 * distinct and 2 * changes < len(cells):  # values that are all different form no groups
        return True
    return numbers is not None and bool((np.diff(numbers) >= 0).all() or (np.diff(numbers) <= 0).all())
