"""Why few runs of the wheel fail: the section of the report."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from drawing import Line, grouped, mean_and_error, shown, table
from paper_wheel import quadrant
from wheel_why import CHANGES, DELTA, METHODS, SEEDS

Way = tuple[str, str]  # method and k
WHERE = f"{DELTA:g}"


def why_summary(lines: Sequence[Line], unchanged: Sequence[Line]) -> str:
    """Which change makes runs fail altogether, in a sentence or two."""
    if not lines:
        return ""
    counts = []
    for change, (_, said) in CHANGES.items():
        own = [line for line in lines if line["change"] == change]
        pairs = [(failed([line]), failed(before(line, unchanged))) for line in own if before(line, unchanged)]
        if own:
            counts.append((said, failed(own), len(own), sum(was for _, was in pairs), len(pairs)))
    more = [c for c in counts if c[1] * max(c[4], 1) > c[3] * c[2]]
    methods = ", ".join(f"`{method}`" + (f" {k}" if k else "") for method, k in {way_of(line): None for line in lines})
    start = (
        f"**Why do so few runs fail here?** One change at a time, δ = {WHERE}, {methods}, up to {len(SEEDS)} seeds: "
    )
    told = "; ".join(f"{said}: {n} of {of} runs fail, {was} of {total} without it" for said, n, of, was, total in more)
    if not more:
        return start + f"none of {len(counts)} changes makes more runs fail altogether."
    return start + f"more runs fail altogether with {len(more)} of {len(counts)} changes — {told}."


def why(lines: Sequence[Line], unchanged: Sequence[Line]) -> str:
    """The table of all changes."""
    if not lines:
        return ""
    rows = []
    for method, k in METHODS:
        way = (method, "" if k is None else str(k))
        seeds = {line["seed"] for line in lines if way_of(line) == way}
        rows += [row("none", way, [line for line in of(unchanged, way) if line["seed"] in seeds])] if seeds else []
        for change, (_, said) in CHANGES.items():
            own = [line for line in of(lines, way) if line["change"] == change]
            rows += [row(said, way, own)] if own else []
    notes = " ".join(f"*{said}*: {agent.__doc__}" for agent, said in CHANGES.values())
    return "\n\n".join(
        [
            "## Why do so few runs fail?",
            f"δ = {WHERE}, reading `total`, one change of the study at a time; a run has failed where it lost more "
            f"than one quadrant is worth, {quadrant(WHERE):,.0f}. {notes}",
            table(["change", "method", "k", "seeds", "final regret", "least … median … most", "failed"], rows),
            why_summary(lines, unchanged),
        ]
    )


def row(said: str, way: Way, own: Sequence[Line]) -> list[object]:
    values = sorted(float(line["regret"]) for line in own)
    spread = f"{values[0]:.0f} … {median(values):.0f} … {values[-1]:.0f}" if values else ""
    return [said, f"`{way[0]}`", way[1], len(own), shown(*mean_and_error(own, "regret"), 0), spread, failed(own)]


def way_of(line: Line) -> Way:
    return line["method"], line["k"]


def of(lines: Sequence[Line], way: Way) -> list[Line]:
    """The lines of a method at this δ and reading, where these are columns."""
    there = {"delta": WHERE, "variant": "total"}
    own = grouped(lines, "method", "k").get(way, [])
    return [line for line in own if all(line.get(name, value) == value for name, value in there.items())]


def before(line: Line, unchanged: Sequence[Line]) -> list[Line]:
    """The run of the same seed without the change."""
    return [own for own in of(unchanged, way_of(line)) if own["seed"] == line["seed"]]


def failed(lines: Sequence[Line]) -> int:
    return sum(float(line["regret"]) > quadrant(WHERE) for line in lines)
