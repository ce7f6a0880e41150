"""Float32 passes over a split, compared with float64 where they may be wrong, and what is said about it."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ... import device as devices
from ...core.checked_pass import MOST_DIFFERENCE, CheckedPass, in_float64
from ...core.jacobian.capture import Capture, Captured
from ...core.network.forward import Inputs, evenly_spaced_numbers
from ...core.network.kinks import MOST_UNITS
from ...errors import SublaplaceError
from ...files.data.datasets import Split
from ...reporter import Reporter

# Rows of a split that are always compared: one of this many, at least one and at most a few. On a CPU a sampled row
# of a ResNet-20 takes about ten times as long, in both precisions together, as a row of a float32 pass.
ROWS_PER_SAMPLED = 256
MOST_SAMPLED = 4
FLOAT64_ROWS = 32  # in one pass
NAMED_ROWS = 5  # in a message
Read = Callable[[Split, Sequence[int]], Inputs]
Combine = Callable[[Split, Sequence[int]], Tensor]  # U of these rows


class Float64Check:
    """Passes over one split, with float64 in the rows where float32 differs from it."""

    def __init__(self, checked: CheckedPass, split: Split, sampled: Sequence[int], read_exact: Read) -> None:
        self.checked, self.split, self.read_exact, self.n_sampled = checked, split, read_exact, len(sampled)
        wrong = [number for number, own in enumerate(checked.sample_differences) if own > MOST_DIFFERENCE]
        self.suspects = {sampled[number] for number in wrong}
        self.unexplained = {sampled[number] for number in wrong if number not in checked.sample_near}
        self.replaced: set[int] = set()  # rows that were used in float64
        self.is_reported = False

    def captured(self, inputs: Inputs, start: int, U: Tensor | None = None) -> Captured:
        """A pass over the rows from `start` on, through their combinations U if there are some."""
        captured, near = self.checked(inputs, U)
        passed = range(start, start + len(captured.f))
        compared = sorted({start + row for row in near} | self.suspects.intersection(passed))
        for first in range(0, len(compared), FLOAT64_ROWS):
            few = compared[first : first + FLOAT64_ROWS]
            exact_inputs, passed_rows = self.read_exact(self.split, few), [row - start for row in few]
            same_U = None if U is None else U[passed_rows]
            captured, wrong = self.checked.corrected(captured, passed_rows, exact_inputs, same_U)
            self.replaced |= {start + row for row in wrong}
        return captured

    def report(self, reporter: Reporter, name: str, replaced: Iterable[int]) -> None:
        """Say once which rows were used in float64, and whether float32 suits the network."""
        if self.is_reported:
            return
        self.is_reported = True
        if rows := sorted(replaced):
            numbers = [str(number) for number in self.split.rows[rows[:NAMED_ROWS]]]
            shown = ", ".join([*numbers, "…"] if len(rows) > NAMED_ROWS else numbers)
            reporter.note(
                f"the gradients of {len(rows)} of {len(self.split)} {name} rows ({shown}) differ by more than "
                f"{MOST_DIFFERENCE:.1%} in float32 and float64, as where rounding decides on which side of the kink of "
                "a ReLU a pre-activation lies: these rows are used in float64"
            )
        if self.unexplained:
            reporter.warn(
                f"the gradients of {len(self.unexplained)} of {self.n_sampled} sampled {name} rows differ by up to "
                f"{max(self.checked.sample_differences):.1%} in float32 and float64, though no pre-activation was "
                "seen near a kink: other rows may differ too. Use --dtype float64"
            )


class TwoPrecisions:
    """A float32 network with its copy in float64, and how rows are read for each; one for all passes of a run."""

    def __init__(self, capture: Capture, read: Read, read_exact: Read) -> None:
        self.capture, self.read, self.read_exact = capture, read, read_exact
        # Not if it is in float64 itself, or does not run in it.
        self.are_comparable = any(part.dtype == torch.float32 for part in capture.model.parameters())

    @cached_property
    def exact(self) -> Capture:
        return in_float64(self.capture)


class Float64Checks:
    """The check of each split, made when it is first passed over; there is none for passes in float64."""

    def __init__(self, network: TwoPrecisions, reporter: Reporter, combine: Combine | None = None) -> None:
        self.network, self.reporter = network, reporter
        self.combine = combine  # for passes through combinations of the outputs
        self.by_split: dict[int, Float64Check] = {}

    def try_out(self, split: Split) -> None:
        """Try the check of a split before the work, so that all workers know whether the network runs in float64."""
        try:
            check = self.of(split)
        except (SublaplaceError, *devices.OUT_OF_MEMORY):
            raise
        except Exception as error:  # the network's own code may raise anything in another dtype
            self.network.are_comparable = False
            self.reporter.note(
                f"the network does not run in float64 ({type(error).__name__}: {error}): its float32 passes are not "
                "compared with it, not even at kinks of its activations"
            )
            return
        if check is not None and check.checked.n_wide:
            self.reporter.note(
                f"{check.checked.n_wide} activations have {MOST_UNITS} or more units per row and are not watched for "
                "kinks: a few rows' gradients may differ from float64 by some 0.1 %. To be sure, use --dtype float64"
            )

    def of(self, split: Split) -> Float64Check | None:
        if self.network.are_comparable and id(split) not in self.by_split:
            self.by_split[id(split)] = self._made(split)
        return self.by_split.get(id(split))

    def _made(self, split: Split) -> Float64Check:
        count = min(MOST_SAMPLED, max(1, len(split) // ROWS_PER_SAMPLED))
        sampled = evenly_spaced_numbers(len(split), count)
        network, U = self.network, None if self.combine is None else self.combine(split, sampled)
        rows = (network.read(split, sampled), network.read_exact(split, sampled))
        checked = CheckedPass.of(network.capture, network.exact, *rows, U)
        return Float64Check(checked, split, sampled, network.read_exact)

    def replaced_rows(self, split: Split) -> list[int]:
        """The rows of a split that were used in float64 so far."""
        check = self.by_split.get(id(split))
        return [] if check is None else sorted(check.replaced)

    def report(self, name: str, split: Split, replaced: Iterable[int]) -> None:
        """Say once which rows of a split were used in float64, by this worker or another one."""
        check = self.by_split.get(id(split))
        if check is not None:
            check.report(self.reporter, name, replaced)
