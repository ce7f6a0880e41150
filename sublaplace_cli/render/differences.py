"""How the metrics of each set of test rows differ from those of the first one, in lines of at most 80 characters."""

from collections.abc import Iterator, Sequence

from ..catalog import TASKS
from ..plain_text import visible
from ..results.differences import Difference
from ..results.result import Answer, Listing, Result, Row

LINE_WIDTH = 80
MOST_METHODS = 3  # of those that were asked for; then the network alone
NETWORK_ALONE = "map"
# The most wanted first; those that are no mean over rows have no standard error.
_SHOWN = {
    "measurements": ("nll", "coverage95_total", "rmse", "crps", "w2_relative", "rank"),
    "classes": ("nll", "accuracy", "ece", "brier", "w2_relative", "rank"),
}


def difference_lines(answer: Answer) -> list[str]:
    """A few lines for each set after the first; none if there is one set only."""
    if isinstance(answer, Listing):
        return []
    sets = dict.fromkeys((each.set, each.reference, each.paired) for each in answer.differences)
    lines = [line for group in sets for line in _lines(answer, *group)]
    fitted_to = answer.details.get("calibration", {}).get("set")
    if lines and fitted_to is not None:
        lines.append(f"factors: fitted to {fitted_to} in folds; the other sets have that of all its rows")
    return list(map(visible, lines))


def _lines(result: Result, name: str, reference: str, paired: bool) -> Iterator[str]:
    rows = (*result.compared_rows, *result.references.rivals)
    here, there = ({row.choice: row for row in rows if row.set == own} for own in (name, reference))
    asked = [row.choice for row in result.compared_rows if row.set == name][:MOST_METHODS]
    yield f"{name} − {reference}, {'the same rows' if paired else 'other rows'}:"
    for choice in dict.fromkeys((*asked, NETWORK_ALONE)):
        if choice in here and choice in there:
            found = [each for each in result.differences if (each.set, each.method, each.k) == _key(here[choice], name)]
            yield _line(f"  {choice}: ", _changes(result, here[choice], there[choice], found))


def _key(row: Row, name: str) -> tuple[str, str, int | None]:
    return name, row.method, row.k


def _line(start: str, changes: Sequence[str]) -> str:
    """As many as there is room for."""
    taken = list(changes)
    while len(taken) > 1 and len(start + ", ".join(taken)) > LINE_WIDTH:
        taken.pop()
    return start + ", ".join(taken)


def _changes(result: Result, here: Row, there: Row, found: Sequence[Difference]) -> list[str]:
    errors = {each.metric: each for each in found}
    changes = []
    for metric in _SHOWN["classes" if TASKS[result.setup.task].labels else "measurements"]:
        value, before = here.value(metric), there.value(metric)
        if metric in errors:
            error = errors[metric].standard_error
            changes.append(f"{metric} {errors[metric].difference:+.2g}" + ("" if error is None else f" ± {error:.2g}"))
        elif value is not None and before is not None:
            changes.append(f"{metric} {value - before:+.2g}")
    return changes
