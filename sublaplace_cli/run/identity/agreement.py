"""Whether all ranks work with the same network and rows."""

import torch

from ...errors import UserError
from ...files.artifacts.run_folder import fingerprint
from ..run import Run


def require_agreement(run: Run) -> None:
    """All workers must see the same network and the same rows, and differentiate it in the same way."""
    captures = [run.passes.capture, run.passes.over("train").capture]
    blocks = [
        [type(block).__name__, *(list(tensor.shape) for tensor in block.tensors().values())]
        for capture in captures
        for block in capture.templates
    ]
    own = {
        "torch": torch.__version__,
        "weights, data or options": fingerprint(run.store.identity),
        "test sets": {own.split: own.digest for own in run.tests},
        "rows": {name: len(split) for name, split in run.splits.by_name.items()},
        "way of differentiating the network": [
            *([own.rows_per_pass for own in captures], captures[0].batched, blocks),
            run.passes.float64_checks.network.are_comparable,
        ],
    }
    for rank, theirs in enumerate(run.workers.exchange(own)):
        for what, value in own.items():
            if theirs[what] != value:
                raise UserError(
                    f"rank {rank} has other {what} than rank {run.workers.rank}",
                    hint="all ranks need the same command, spec, checkpoint, data and version of torch",
                )
