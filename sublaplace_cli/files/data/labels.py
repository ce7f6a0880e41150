"""Class labels that are texts or true/false, and the number of each class.

A reader hands on the place of each row's label among the distinct ones of its file; the classes of all files are those
of the training rows in sorted order, or those that the spec or a posterior lists.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...catalog import TASKS
from ...errors import UserError
from .sources import (
    MISSING,
    MISSING_MARKS,
    ChosenRows,
    ReadRequest,
    Source,
    number_in,
    refuse_if_larger,
    suggestion_from_file,
)

MOST_LABELS = 10_000  # distinct ones of a file
LONGEST_LABEL = 200
CLASSES_NAMED = 10  # classes in a note
TRUTH = ("False", "True")
FIX_ORDER = "list them in data.classes, in the order of the network's outputs"


@dataclass(frozen=True)
class Labels:
    """The place of each row's label in `names`, or MISSING."""

    codes: np.ndarray  # (N,) int64
    names: tuple[str, ...]


class LabelPlaces:
    """Places of texts among the distinct ones so far."""

    def __init__(self, where: str, classes: Sequence[str] | None) -> None:
        self.where, self._classes = where, frozenset(classes or ())
        self._places: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._places)

    def of(self, text: str) -> int:
        """MISSING for a text that says so, unless it is a class."""
        name = text.strip()
        place = self._places.get(name)
        if place is not None:
            return place
        if name not in self._classes and name.lower() in MISSING_MARKS:
            return MISSING
        if len(name) > LONGEST_LABEL or len(self._places) == MOST_LABELS:
            found = f"more than {MOST_LABELS} distinct texts" if len(name) <= LONGEST_LABEL else "a very long text"
            raise UserError(f"{self.where} has {found}: these are no class labels", hint="is it the target?")
        if not _is_unicode(name):
            raise UserError(f"{self.where} has a label that is not valid text: {name!a}")
        self._places[name] = place = len(self._places)
        return place


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def labelled_source(source: Source, labels: Labels, request: ReadRequest) -> Source:
    """The source with these labels as targets; as numbers if all of them are numbers."""
    if request.targets.classes is None:
        numbers = [number_in(name) for name in labels.names]
        if numbers and None not in numbers:
            values = np.array([*numbers, np.nan], dtype=np.float64)
            return replace(source, targets=values[labels.codes].reshape(-1, 1))  # MISSING is the last one
        mixed = [name for name, number in zip(labels.names, numbers, strict=True) if number is not None]
        if mixed:
            other = next(name for name in labels.names if name not in mixed)
            raise UserError(
                f"{source.path}: the target has numbers ({_shown(mixed[0])}) and texts ({_shown(other)})",
                hint=f"repair the file, or if all of them are class labels {FIX_ORDER}",
            )
    return replace(source, targets=labels.codes, labels=labels.names)


def with_array_labels(source: Source, request: ReadRequest) -> Source:
    """A source whose targets are an array of texts or booleans, with labels instead."""
    targets = source.targets
    if (
        targets is None
        or not request.targets.takes_labels
        or targets.dtype.kind not in "bUS"
        or not _is_column(targets)
    ):
        return source
    flat, where = targets.reshape(-1), f"{source.path}: the target"
    if flat.dtype.kind == "b":
        return labelled_source(source, Labels(flat.astype(np.int64), TRUTH), request)
    refuse_if_larger(3 * flat.nbytes, request.memory, where)  # sorted, with the place of each
    distinct, codes = np.unique(flat, return_inverse=True)
    if len(distinct) > MOST_LABELS:
        raise UserError(f"{where} has more than {MOST_LABELS} distinct texts: these are no class labels")
    places = LabelPlaces(where, request.targets.classes)
    try:
        texts = [text.decode() if isinstance(text, bytes) else text for text in distinct.tolist()]
    except (ValueError, SystemError) as error:
        raise UserError(f"{where} has a label that is not valid text", hint="save it as UTF-8 text") from error
    return labelled_source(source, Labels(_of_distinct(texts, codes.reshape(-1), places), places.names), request)


def _is_column(targets: np.ndarray) -> bool:
    return targets.ndim == 1 or (targets.ndim == 2 and targets.shape[1] == 1)


def _of_distinct(texts: Iterable[str], codes: np.ndarray, places: LabelPlaces) -> np.ndarray:
    return np.array([places.of(text) for text in texts], dtype=np.int64)[codes]


def classes_of(source: Source, codes: np.ndarray) -> tuple[str, ...]:
    """The labels of these rows in sorted order."""
    names = source.labels or ()
    return tuple(sorted(names[code] for code in np.unique(codes)))


def numbered(chosen: ChosenRows, values: np.ndarray, classes: Sequence[str] | None, task: str) -> np.ndarray:
    """Labels as numbers of their classes (N,); numbers unchanged."""
    source = chosen.source
    if source.labels is None and classes is None:
        return values
    if source.labels is None:
        found = f"{source.path}: the target is numbers, but the classes are labels: {described(classes or ())}"
        raise UserError(found, hint="use labels in all files, or remove data.classes")
    if classes is None:
        found = f"{source.path}: the target is labels ({_shown(source.labels[0])}), expected class numbers"
        raise UserError(found, hint=f"use numbers in all files, or {FIX_ORDER}")
    if TASKS[task].one_logit and len(classes) != 2:
        listed = ", ".join(map(_shown, classes[:CLASSES_NAMED]))
        found = f"{source.path}: a {task} task has two classes, the training rows have {len(classes)}: {listed}"
        raise UserError(found, hint="use task: multiclass, or check the target")
    by_name = {name: number for number, name in enumerate(classes)}
    numbers = np.array([by_name.get(name, MISSING) for name in source.labels], dtype=np.int64)[values]
    unknown = numbers == MISSING
    if unknown.any():
        first = int(np.argmax(unknown))
        name = source.labels[values[first]]
        where = f"{source.path}: {chosen.row_label(first)}"
        found = f"{where}: the label {_shown(name)} is not one of the {len(classes)} classes"
        hint = f"they are those of the training rows or of data.classes; {suggestion_from_file(name, classes)}"
        raise UserError(f"{found} (in {int(unknown.sum())} rows)", hint=hint)
    return numbers


def described(classes: Sequence[str]) -> str:
    """“'cat' is 0, 'dog' is 1”."""
    named = [f"{_shown(name)} is {number}" for number, name in enumerate(classes)]
    return ", ".join(named if len(named) <= CLASSES_NAMED else [*named[: CLASSES_NAMED - 2], "…", named[-1]])


def _shown(name: str) -> str:
    return f"'{name}'"
