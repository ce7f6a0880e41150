"""Time and memory of a run, estimated before it starts: for `--dry-run`, and as a note where it takes longer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...sizes import format_bytes
from .rates import measured_rates
from .work import Plan, Work

NAMED_SHARE, MOST_LISTED = 0.1, 3  # a piece of work is named where it takes at least this share of the time


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of everything that is still to do."""

    pieces: Sequence[tuple[Work, float]]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.pieces)

    @property
    def by_step(self) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for work, seconds in self.pieces:
            found[work.step] = found.get(work.step, 0.0) + seconds
        return found

    def text(self, memory: int, spent: float = 0.0) -> str:
        """`about 3 min and 2.1 GiB: a factor of 10,000 rows, a Gram matrix of 10,000 rows`."""
        by_name: dict[str, float] = {}
        for work, seconds in self.pieces:
            by_name[work.what] = by_name.get(work.what, 0.0) + seconds
        largest = sorted(by_name, key=lambda what: -by_name[what])[:MOST_LISTED]
        named = [what for what in largest if by_name[what] >= NAMED_SHARE * self.seconds]
        about = f"about {duration(spent + self.seconds)} and {format_bytes(memory)}"
        return f"{about}: {', '.join(named)}" if named else about


def estimated_time(plan: Plan) -> TimeEstimate:
    """Each piece of work at rates that are measured now; several workers share all but what is factorised."""
    works, workers = plan.works(), plan.run.workers.size
    rates = measured_rates(plan, works)
    return TimeEstimate([(work, rates.seconds(work) / (1 if work.undivided else workers)) for work in works])


def duration(seconds: float) -> str:
    """`40 s`, `3 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.1g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
