"""`--dry-run`: what would be computed, written and held, without writing anything."""

from __future__ import annotations

from collections.abc import Iterator

from ..catalog import FULL
from ..core.jacobian.blocks import COLUMN_PANEL
from ..core.jacobian.rows import MOST_TILE_BYTES, TILE_SHARE
from ..core.omega.gram import GRAM_TILE_BYTES
from ..core.posterior.full import full_bytes
from ..core.posterior.subnet import natural_form, subnet_bytes
from ..core.selectors.greedy import columns_room, first_width
from ..device import peak_memory
from ..files.artifacts.run_folder import file_stem
from ..results.result import Listing
from ..run.posteriors import variant
from ..run.run import Run


def plan(run: Run) -> Listing:
    """p, N, files and bytes to be written, and an estimate of the peak memory."""
    files = _files(run)
    there = set(run.store.existing(list(files)))
    return Listing(
        {
            "schema": 1,
            "dry_run": True,
            "n_params": run.layout.size,
            "n_outputs": run.passes.n_outputs,
            **{f"n_{name}": len(split) for name, split in run.splits.by_name.items()},
            "run_dir": str(run.store.path),
            "memory_limit": run.memory,
            "memory_estimate": _peak(run),
            "bytes_to_write": sum(size for name, size in files.items() if name not in there),
            "files": {name: size for name, size in files.items() if name not in there},
            "reused": sorted(there),
        }
    )


def _split_names(run: Run) -> list[str]:
    return list(dict.fromkeys(run.splits.origins[name] for name in run.splits.by_name))


def _files(run: Run) -> dict[str, int]:
    p, C, command = run.layout.size, run.passes.n_outputs, run.job.command
    rows = len(run.split("train")) * C
    files: dict[str, int] = {}
    for name in _split_names(run) if not run.job.rows.scores_only else ():
        storage = run.row_storage(name)
        outputs = 16 * len(run.split(name)) * C
        files[f"jacobians-{name}"] = outputs + (storage.source.compact_bytes() if storage.stored else 0)
    files["scores"] = 16 * p
    test = 8 * 5 * len(run.split("test")) * C if command == "evaluate" else 0
    for choice in run.choices:
        if choice.k is None:  # not known yet, or none
            continue
        name, k = choice.call.name, choice.k
        files[file_stem("indices", name, k)] = 16 * k
        if command in ("fit", "evaluate"):
            matrices = subnet_bytes(k, rows, natural_form(k, rows))
            files[variant(file_stem("posterior", name, k), run.rescale)] = matrices + 16 * k
        if command == "evaluate":
            files[variant(file_stem("predictions", name, k), run.rescale)] = test
    if _needs_full(run):
        files[file_stem("posterior", FULL, p)] = full_bytes(rows)
    if command == "evaluate" and run.job.compares_with_full:
        files[file_stem("predictions", FULL, p)] = test
    return files


def _needs_full(run: Run) -> bool:
    """Whether the full posterior of the training rows is fitted on the way."""
    command = run.job.command
    if command == "evaluate" and run.job.compares_with_full:
        return True
    if any(choice.call.method.needs_full or choice.retain is not None for choice in run.choices):
        return True
    return command in ("fit", "evaluate") and run.rescale != "none"


def _peak(run: Run) -> int:
    """The process as it is now, what stays in memory, and the largest of the steps."""
    storages = [run.row_storage(name) for name in _split_names(run)]
    held = sum(storage.source.expanded_bytes() for storage in storages if storage.form) // run.workers.size
    return peak_memory() + held + 8 * 3 * run.layout.size + max(_steps(run))


def _steps(run: Run) -> Iterator[int]:
    command, rows = run.job.command, len(run.split("train")) * run.passes.n_outputs
    yield run.passes.rows_per_pass(run.split("train")) * run.passes.capture.row_bytes
    yield _tiles(run, MOST_TILE_BYTES)
    for choice in run.choices:
        if choice.k is not None and command in ("fit", "evaluate"):
            yield _subnet(run, rows, choice.k)
        if choice.k is not None and command != "jacobians" and choice.call.method.pooled:
            yield _search(run, rows, choice.k)
    if _needs_full(run):
        test = len(run.split("test")) * run.passes.n_outputs if command == "evaluate" else 0
        # The Gram matrix with its tiles, then the cross Gram and what the solve makes of it.
        yield full_bytes(rows) + 8 * 2 * rows * test + 2 * _tiles(run, GRAM_TILE_BYTES)


def _search(run: Run, rows: int, k: int) -> int:
    """The columns that a search holds, the directions of its pivots, and its own matrices."""
    columns = min(8 * rows * min(first_width(k), run.layout.size), columns_room(run.memory))
    return 2 * columns + 8 * rows * k + 8 * 3 * min(rows, 2 * k) ** 2


def _tiles(run: Run, cap: int) -> int:
    """One tile of rows while its blocks are used; of held rows only the float64 copies of a panel."""
    blocks = run.passes.capture.templates
    if run.row_storage("train").form:
        return (
            len(run.split("train")) * run.passes.n_outputs * 8 * min(COLUMN_PANEL, max(block.width for block in blocks))
        )
    widest = max(block.row_bytes for block in blocks)
    return min(len(run.split("train")) * widest, cap, run.memory // TILE_SHARE)


def _subnet(run: Run, rows: int, k: int) -> int:
    """Its matrices, and the columns of a chunk of rows: assembled, and as they come from a block."""
    chunk = min(8 * 2 * rows * k, min(MOST_TILE_BYTES, run.memory // TILE_SHARE))
    return subnet_bytes(k, rows, natural_form(k, rows)) + chunk + _tiles(run, MOST_TILE_BYTES)
