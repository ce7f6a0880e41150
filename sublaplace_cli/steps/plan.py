"""`--dry-run`: what would be computed, written and held, without writing anything."""

from __future__ import annotations

from typing import Any

from ..files.run_folder import file_stem
from .passes import held_form, jacobian_bytes, settled_bytes, will_store
from .request import Choice, actual_k
from .session import Session

BASE_MEMORY = 250 * 2**20  # interpreter, torch and the run-time of its kernels


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
    for choice in wanted:
        k = actual_k(choice, p)
        if k is None:
            continue
        files[file_stem("indices", choice.call.name, k)] = 16 * k
        if command in ("fit", "evaluate"):
            files[file_stem("posterior", choice.call.name, k)] = (
                8 * (k * k if k <= rows else rows * (rows + k)) + 16 * k
            )
    if command == "evaluate":
        if session.settings.full == "exact":
            files[file_stem("posterior", "full", p)] = 8 * rows * rows
        for stem in [stem for stem in files if stem.startswith("posterior-")]:
            files[stem.replace("posterior-", "predictions-", 1)] = 8 * 5 * len(session.split("test")) * C
    return files


def _peak(session: Session, command: str, wanted: list[Choice]) -> int:
    p, C = session.layout.size, session.n_outputs
    rows = len(session.split("train")) * C
    names = dict.fromkeys(session.split_name(name) for name in session.splits)
    held = sum(settled_bytes(session, name) for name in names if held_form(session, name))
    one_pass = session.capture.rows_per_pass * sum(block.row_bytes for block in session.capture.pattern)
    largest = 0
    for choice in wanted:
        k = actual_k(choice, p) or 0
        largest = max(largest, 8 * (3 * k * k if k <= rows else 2 * rows * (rows + k)))
    full = 8 * 4 * rows * rows if command == "evaluate" and session.settings.full == "exact" else 0
    return BASE_MEMORY + held + max(3 * one_pass, largest, full) + 24 * p
