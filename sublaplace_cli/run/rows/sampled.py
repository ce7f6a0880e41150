"""Rows that enter Ω through a few random combinations of their outputs: for networks with many classes."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor

from ...catalog import task_of
from ...core.combined_pass import prepare_combined
from ...core.jacobian.rows import aligned
from ...core.likelihoods import Likelihood
from ...core.network.forward import Inputs, outputs
from ...errors import UserError
from ...files.data.datasets import Split
from ...files.spec.models import Spec
from .float64_check import Float64Checks
from .passes import Passes

EXACT_OUTPUTS = 32  # up to so many outputs all of them are the default
DEFAULT_SAMPLED = 8
# The combinations of a row depend on its outputs, whose last bits depend on the batch that it is in: so these outputs
# come from batches that are always the same ones, whatever the rows of a pass are.
ROWS_PER_DRAW = 16


class SampledPasses(Passes):
    """Passes with the Jacobian of random combinations; the outputs f are all of them."""

    def __init__(self, passes: Passes, count: int, likelihood: Likelihood, seed: int, sample: Inputs, memory: int):
        super().__init__(passes.model, passes.reader, passes.capture, passes.reporter)
        self.capture = prepare_combined(passes.capture, count, sample, memory)
        self.float64_checks = Float64Checks(passes.float64_checks.network, passes.reporter, self._combinations_of)
        self.count, self.likelihood, self.seed = count, likelihood, seed

    def combinations(self, split: Split, start: int, stop: int) -> Tensor:
        """U (m, C, s) of these rows: a function of the seed, the rows' numbers and their outputs alone."""
        batches = list(aligned(start, stop, ROWS_PER_DRAW, len(split)))
        with torch.no_grad():
            f = torch.cat([outputs(self.model, self.reader(split, a, b)) for a, b in batches]).double()
        signs = torch.cat([self._signs(a, b) for a, b in batches])
        own = slice(start - batches[0][0], stop - batches[0][0])
        return self.likelihood.combinations(f[own], signs[own].to(f), self.count)

    def _combinations_of(self, split: Split, rows: Sequence[int]) -> Tensor:
        """The same by row numbers."""
        return torch.cat([self.combinations(split, row, row + 1) for row in rows])

    def _signs(self, start: int, stop: int) -> Tensor:
        """±1 for each row and output, drawn on the CPU so that every device gets the same ones."""
        generator = torch.Generator().manual_seed(crc32(f"{self.seed} {start}".encode()))
        return 2 * torch.randint(0, 2, (stop - start, self.n_outputs), generator=generator) - 1


def sampled_passes(
    passes: Passes, spec: Spec, likelihood: Likelihood, seed: int, sample: Inputs, memory: int
) -> SampledPasses | None:
    """Passes for the rows of Ω, if the spec, or the number of classes, asks for others than for all outputs."""
    asked, C = spec.posterior.hessian, passes.n_outputs
    if asked == "exact" or not task_of(spec.task, spec.outputs).softmax or (asked is None and C <= EXACT_OUTPUTS):
        return None
    count = DEFAULT_SAMPLED if asked is None else asked.sampled
    if asked is None:
        passes.reporter.note(
            f"{C} outputs: training rows are differentiated through {count} random combinations of them; for all "
            "outputs set posterior.hessian: exact (--dry-run shows what each costs)"
        )
    if count >= C:
        passes.reporter.note(f"posterior.hessian: {{sampled: {count}}} is exact for {C} outputs")
        return None
    return SampledPasses(passes, count, likelihood, seed, sample, memory)


def require_all_outputs(passes: Passes, what: str) -> None:
    """Refuse what needs all outputs of the training rows, if only combinations of them are computed."""
    if passes.sampled is not None:
        count = passes.sampled.row_outputs
        raise UserError(
            f"{what} needs all {passes.n_outputs} outputs of the training rows, but they are differentiated through "
            f"{count} random combinations",
            hint="set posterior.hessian: exact in the spec",
        )
