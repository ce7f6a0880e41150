"""`--dry-run`: what would be computed, written and held, without writing anything."""

from __future__ import annotations

from typing import Any

from ..core.jacobian.blocks import PANEL
from ..core.jacobian.rows import MOST_TILE_BYTES, TILE_SHARE
from ..core.omega.row_sums import GRAM_TILE_BYTES
from ..core.posterior.fitting import full_bytes, natural_form, subnet_bytes
from ..core.selectors.greedy import columns_room, first_width
from ..device import peak_memory
from ..files.artifacts.run_folder import file_stem
from .full import FULL, variant
from .passes import held_form, jacobian_bytes, settled_bytes, will_store
from .request import Choice, actual_k
from .session import Session


def plan(session: Session, command: str, wanted: list[Choice]) -> dict[str, Any]:
    """p, N, files and bytes to be written, and an estimate of the peak memory."""
    files = _files(session, command, wanted)
    there = {stem for stem in files if session.folder_path.joinpath(f"{stem}.safetensors").exists()}
    return {
        "schema": 1,
        "dry_run": True,
        "n_params": session.layout.size,
        "n_outputs": session.n_outputs,
        **{f"n_{name}": len(split) for name, split in session.splits.items()},
        "run_dir": str(session.folder_path),
        "memory_limit": session.memory,
        "memory_estimate": _peak(session, command, wanted),
        "bytes_to_write": sum(size for stem, size in files.items() if stem not in there),
        "files": {stem: size for stem, size in files.items() if stem not in there},
        "reused": sorted(there),
    }


def _files(session: Session, command: str, wanted: list[Choice]) -> dict[str, int]:
    p, C = session.layout.size, session.n_outputs
    rows = len(session.split("train")) * C
    files: dict[str, int] = {}
    if not session.settings.scores_only:
        for name in dict.fromkeys(session.split_name(name) for name in session.splits):
            outputs = 16 * len(session.split(name)) * C
            files[f"jacobians-{name}"] = outputs + (jacobian_bytes(session, name) if will_store(session, name) else 0)
    files["scores"] = 16 * p
    test = 8 * 5 * len(session.split("test")) * C if command == "evaluate" else 0
    for choice in wanted:
        k = actual_k(choice, p)  # of --k auto it is not known yet
        if k is None:
            continue
        name = choice.call.name
        files[file_stem("indices", name, k)] = 16 * k
        if command in ("fit", "evaluate"):
            matrices = subnet_bytes(k, rows, natural_form(k, rows))
            files[variant(session, file_stem("posterior", name, k))] = matrices + 16 * k
        if command == "evaluate":
            files[variant(session, file_stem("predictions", name, k))] = test
    if _needs_full(session, command, wanted):
        files[file_stem("posterior", FULL, p)] = full_bytes(rows)
    if command == "evaluate" and session.settings.full == "exact":
        files[file_stem("predictions", FULL, p)] = test
    return files


def _needs_full(session: Session, command: str, wanted: list[Choice]) -> bool:
    """Whether the full posterior of the training rows is fitted on the way."""
    if command == "evaluate" and session.settings.full == "exact":
        return True
    compared = any(choice.call.name in (FULL, "norm", "constant") or choice.retain is not None for choice in wanted)
    return compared or (command in ("fit", "evaluate") and session.rescale != "none")


def _peak(session: Session, command: str, wanted: list[Choice]) -> int:
    """This process as it is, with data, weights and a first pass behind it; what stays; the largest of what comes."""
    p, rows = session.layout.size, len(session.split("train")) * session.n_outputs
    names = dict.fromkeys(session.split_name(name) for name in session.splits)
    held = sum(settled_bytes(session, name) for name in names if held_form(session, name)) // session.workers.size
    stages = [_passes(session), _tiles(session, MOST_TILE_BYTES)]
    if command in ("fit", "evaluate"):
        stages += [_subnet(session, rows, k) for choice in wanted if (k := actual_k(choice, p)) is not None]
    if command != "jacobians":
        stages += [_greedy(session, rows, k) for choice in wanted if (k := _greedy_k(choice, p)) is not None]
    if _needs_full(session, command, wanted):
        test = len(session.split("test")) * session.n_outputs if command == "evaluate" else 0
        # The Gram matrix with its tiles, then the cross Gram and what the solve makes of it.
        stages.append(full_bytes(rows) + 8 * 2 * rows * test + 2 * _tiles(session, GRAM_TILE_BYTES))
    return peak_memory() + held + 8 * 3 * p + max(stages)


def _greedy_k(choice: Choice, p: int) -> int | None:
    return actual_k(choice, p) if choice.call.name == "greedy" else None


def _greedy(session: Session, rows: int, k: int) -> int:
    """The columns that it looks at, the directions of its pivots, and its own matrices."""
    columns = min(8 * rows * min(first_width(k), session.layout.size), columns_room(session.memory))
    return 2 * columns + 8 * rows * k + 8 * 3 * min(rows, 2 * k) ** 2


def _passes(session: Session) -> int:
    return session.pass_rows("train") * session.capture.row_bytes


def _tiles(session: Session, cap: int) -> int:
    """One tile of rows while its blocks answer a question; of held rows only the float64 copies of a panel."""
    blocks = session.capture.templates
    if held_form(session, "train"):
        return len(session.split("train")) * session.n_outputs * 8 * min(PANEL, max(block.width for block in blocks))
    widest = max(block.row_bytes for block in blocks)
    return min(len(session.split("train")) * widest, cap, session.memory // TILE_SHARE)


def _subnet(session: Session, rows: int, k: int) -> int:
    """Its matrices, and the columns of a chunk of rows, once put together and once as they come from a block."""
    chunk = min(8 * 2 * rows * k, min(MOST_TILE_BYTES, session.memory // TILE_SHARE))
    return subnet_bytes(k, rows, natural_form(k, rows)) + chunk + _tiles(session, MOST_TILE_BYTES)


def plan_of_sweep(checkpoints: list[str], plans: list[dict[str, Any]]) -> dict[str, Any]:
    """Several runs, one after the other: memory is that of the largest, files add up."""
    files = {f"{i}/{stem}": size for i, one in enumerate(plans, start=1) for stem, size in one["files"].items()}
    return {
        **plans[0],
        "runs": len(plans),
        "checkpoints": checkpoints,
        "run_dir": [one["run_dir"] for one in plans],
        "memory_estimate": max(one["memory_estimate"] for one in plans),
        "bytes_to_write": sum(one["bytes_to_write"] for one in plans),
        "files": files,
        "reused": sorted(f"{i}/{stem}" for i, one in enumerate(plans, start=1) for stem in one["reused"]),
    }
