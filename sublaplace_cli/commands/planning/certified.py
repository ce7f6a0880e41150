"""The work of certified variances, as far as it can be known before: how many steps they take depends on the data."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...core.posterior.certified.intervals import vectors_at_once
from ...run.full.certifier import SAMPLED_OUTPUTS, TRAINING_SAMPLE, certified_stem, preconditioner_rank
from .costs import Work, gram_products

if TYPE_CHECKING:
    from .work import Plan

USUAL_STEPS = 10  # of a batch, each a product with all rows and one with all their transposes; 6 to 40 were seen
FLOAT32_SHARE = 0.5  # of the time that a float64 product takes


def certified_works(plan: "Plan", predicted: Sequence[str]) -> Iterator[Work]:
    """A preconditioner, and the steps for every split and for the sample of the training rows."""
    run, P, p = plan.run, plan.rows, plan.run.layout.size
    tolerance = run.job.compute.tolerance
    C, memory = run.passes.over("train").row_outputs, run.memory
    wanted = [name for name in predicted if certified_stem(name, tolerance) not in plan.reused]
    vectors = [(name, len(run.split(name)) * run.passes.n_outputs) for name in wanted]
    if certified_stem(TRAINING_SAMPLE, tolerance) not in plan.reused:
        vectors.append(("sampled training", min(P, SAMPLED_OUTPUTS)))
    if not vectors:
        return
    rank, row = preconditioner_rank(P, memory), sum(gram_products(block, C) for block in plan.blocks("train"))
    yield Work("full", f"a preconditioner of rank {rank:,}", products=P * rank * row + 2 * P * rank**2)
    yield from plan.read("train", "full", rank / 128)
    for name, count in vectors:
        products = 2 * P * p * FLOAT32_SHARE + 4 * P * rank
        yield Work("full", f"certified variances of {name} rows", products=USUAL_STEPS * count * products)
        yield from plan.read("train", "full", 2 * USUAL_STEPS * -(-count // vectors_at_once(P, p, memory)))
