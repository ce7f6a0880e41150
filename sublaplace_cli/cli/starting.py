"""`sublaplace init`: checks its options and prints what was found."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .. import catalog
from ..errors import UserError, suggestion
from ..plain_text import visible
from . import garbage
from .console import print_result

if TYPE_CHECKING:
    from ..commands.init import Started

WIDTHS = (19, 34, 7)  # of topic, value and certainty


def run_init(
    checkpoint: Path | None, data: Path | None, task: str | None, activation: str | None, spec: Path, *, as_json: bool
) -> None:
    """Write the spec; a file that is named like data takes the place of DATA."""
    if task is not None and task not in catalog.TASKS:
        raise UserError(f"--task: found {task!r}", hint=suggestion(task, catalog.TASKS))
    from ..commands.init import Wishes, start  # imports torch

    garbage.resume()
    is_data = checkpoint is not None and checkpoint.suffix in (".csv", ".parquet", ".arrow", ".feather", ".npz")
    if data is None and is_data:
        checkpoint, data = None, checkpoint
    done = start(Wishes(checkpoint, data, spec, task, activation))
    print_result(_as_json(done) if as_json else _as_text(done))


def _as_json(done: "Started") -> str:
    found = [asdict(finding) for finding in done.findings]
    return json.dumps({"files": [str(path) for path in done.files], "findings": found, "next": done.next_command})


def _as_text(done: "Started") -> str:
    lines = [f"wrote {path}" for path in done.files]
    for finding in done.findings:
        parts = (finding.topic, finding.value, finding.certainty)
        cells = (f"{visible(part):<{width}}" for part, width in zip(parts, WIDTHS, strict=True))
        lines.append(f"  {'  '.join(cells)}  {visible(finding.reason)}")
    unsure = sum(finding.certainty == "check" for finding in done.findings)
    if unsure:
        lines.append("what is marked 'check' is a guess: look at it first")
    return "\n".join([*lines, f"next: {done.next_command}"])
