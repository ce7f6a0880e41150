"""Draws inputs of every category, runs them, and counts which ended as promised.

bash tests/fuzz/run --count 10000 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cli.cli_tools import Tool, core, strict
from fuzz.base import BASELINE, build
from fuzz.case import Case
from fuzz.categories import CATEGORIES
from fuzz.execution import CODES, Ending, Laboratory
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

WORKERS = 2
PROGRESS_EVERY = 30.0  # seconds
Judged = tuple[Case, Ending, list[str]]


@contextmanager
def laboratory() -> Iterator[Laboratory]:
    """A valid project in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        for part in ("streams", "cases"):
            (folder / part).mkdir()
        base = build(folder / "base", Tool(folder / "streams"))
        yield Laboratory(base, folder / "cases", core(strict((base / BASELINE).read_text())))


def draw(base: Path, category: str, count: int, seed: int) -> list[Case]:
    """The first `count` inputs of a category for this seed."""
    drawn: list[Case] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(CATEGORIES[category](base))
    def collect(case: Case) -> None:
        drawn.append(case)

    collect()
    return drawn[:count]


def judge_all(place: Laboratory, cases: list[Case], each: Callable[[Judged], None]) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        for case, (ending, problems) in zip(cases, pool.map(place.judge, cases), strict=True):
            each((case, ending, problems))


def shortest(place: Laboratory, case: Case) -> Case:
    """The case without the changes that the problem does not need."""
    for number in reversed(range(len(case.changes))):
        shorter = case.without_change(number)
        if place.judge(shorter)[1]:
            case = shorter
    return case


class Report:
    """Counts by category, and the cases that did not end as promised."""

    def __init__(self, keep: Path | None) -> None:
        self.keep, self.counts, self.others = keep, Counter[tuple[str, str]](), 0
        self.slowest, self.peak, self.shown = 0.0, 0, time.monotonic()

    def add(self, place: Laboratory, judged: Judged) -> None:
        case, ending, problems = judged
        kind = "other" if problems else CODES[ending.code or 0]
        self.counts[case.category, "tried"] += 1
        self.counts[case.category, kind] += 1
        self.slowest, self.peak = max(self.slowest, ending.seconds), max(self.peak, ending.peak)
        if problems:
            self._keep(shortest(place, case), ending, problems)
        if time.monotonic() - self.shown > PROGRESS_EVERY:
            self.shown = time.monotonic()
            print(f"{self.tried} tried, {self.others} other", file=sys.stderr, flush=True)  # noqa: T201

    @property
    def tried(self) -> int:
        return sum(count for (_, kind), count in self.counts.items() if kind == "tried")

    def _keep(self, case: Case, ending: Ending, problems: list[str]) -> None:
        self.others += 1
        print(f"{case.category}: {'; '.join(problems)}", file=sys.stderr)  # noqa: T201
        print("   " + "\n   ".join(ending.err.strip()[-600:].splitlines()), file=sys.stderr, flush=True)  # noqa: T201
        if self.keep is not None:
            self.keep.mkdir(parents=True, exist_ok=True)
            name = f"{case.category.replace(' ', '-')}-{self.others}.json"
            (self.keep / name).write_text(case.text())
            print(f"   kept as {self.keep / name}", file=sys.stderr, flush=True)  # noqa: T201

    def lines(self) -> Iterator[str]:
        kinds = ["tried", "promised", *CODES.values(), "other"]
        yield f"{'category':12}" + "".join(f"{kind:>10}" for kind in kinds)
        for category in [*CATEGORIES, "all"]:
            chosen = list(CATEGORIES) if category == "all" else [category]
            found = {kind: sum(self.counts[one, kind] for one in chosen) for kind in kinds}
            found["promised"] = sum(found[kind] for kind in CODES.values())
            if found["tried"]:
                yield f"{category:12}" + "".join(f"{found[kind]:10}" for kind in kinds)
        yield f"slowest {self.slowest:.1f} s, largest {self.peak >> 20} MiB"


def replay(place: Laboratory, path: Path) -> bool:
    """Run one stored case and show how it ends."""
    ending, problems = place.judge(Case.read(path))
    print(ending.out + ending.err, end="")  # noqa: T201
    print(f"exit code {ending.code}, {ending.seconds:.1f} s, {ending.peak >> 20} MiB; {problems or 'as promised'}")  # noqa: T201
    return not problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--category", choices=CATEGORIES, action="append", help="only these; may be repeated")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write inputs that do not end as promised to DIR")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input of --keep or of the corpus")
    arguments = parser.parse_args()
    with laboratory() as place:
        if arguments.replay:
            return 0 if replay(place, arguments.replay) else 1
        chosen, report = arguments.category or list(CATEGORIES), Report(arguments.keep)
        for number, category in enumerate(chosen):
            share = arguments.count // len(chosen) + (number < arguments.count % len(chosen))
            judge_all(place, draw(place.base, category, share, arguments.seed), lambda one: report.add(place, one))
    print("\n".join(report.lines()))  # noqa: T201
    return 1 if report.others else 0


if __name__ == "__main__":
    sys.exit(main())
