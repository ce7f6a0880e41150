"""`sublaplace clean`: checks its options and prints what was removed."""

import json
import re
from pathlib import Path

from ..commands.clean import REMOVED, RUNS, TO_REMOVE, Cleaned, CleanedRun, clean
from ..errors import UserError
from ..plain_text import visible
from ..sizes import format_bytes
from .console import print_result

SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_HELD = 48  # letters of what a folder holds


def run_clean(spec: Path | None, run_dir: Path | None, older_than: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Remove the run folders beside a spec, or those of --run-dir."""
    unused_for = 0.0 if older_than is None else parse_age(older_than)
    if run_dir is not None and spec is not None:
        raise UserError("--run-dir and --spec cannot be combined: a run folder of your own needs no spec")
    folder = run_dir.absolute() if run_dir is not None else _folder_of(spec) / RUNS
    done = clean(folder, is_default=run_dir is None, unused_for=unused_for, dry_run=dry_run)
    print_result(_as_json(done, dry_run) if as_json else _as_text(done, dry_run))


def parse_age(text: str) -> float:
    """`30m`, `12h`, `7d`, `2w` → seconds."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([mhdw])", text.strip())
    if match is None:
        hint = "expected a number and a unit, such as 30m, 12h, 7d or 2w"
        raise UserError(f"--older-than {text!r} is not a time", hint=hint)
    return float(match[1]) * SECONDS[match[2]]


def _folder_of(spec: Path | None) -> Path:
    from ..files.spec.loading import find_spec  # imports pydantic

    if spec is not None and not spec.is_file():
        raise UserError(f"--spec {spec}: no such file")
    return (spec or find_spec(Path.cwd())).absolute().parent


def _as_text(done: Cleaned, dry_run: bool) -> str:
    lines = [_line(run) for run in done.runs]
    lines += [f"{visible(name)}  not a run folder: left alone" for name in done.strangers]
    gone = done.with_state(REMOVED, TO_REMOVE)
    if not done.runs:
        return "\n".join([*lines, f"no run folders in {visible(str(done.folder))}"])
    size = format_bytes(sum(run.contents.size for run in gone))
    verb = "would remove" if dry_run else "removed"
    total = f"{verb} {len(gone)} of {len(done.runs)} run folders in {visible(str(done.folder))}: {size}"
    return "\n".join([*lines, total])


def _line(run: CleanedRun) -> str:
    contents = run.contents
    parts = (contents.path.name, f"{_age(contents.seconds_unused)} ago", format_bytes(contents.size), _held(run))
    name, age, size, held = (visible(part) for part in parts)
    line = f"{name:<16}  {age:>8}  {size:>10}  {held:<{MOST_HELD}}  {run.state}"
    if contents.foreign:
        kept = ", ".join(map(visible, contents.foreign[:3])) + (", …" if len(contents.foreign) > 3 else "")
        line += f", but not {kept}: not ours"
    return line


def _age(seconds: float) -> str:
    """In the largest unit of which there is at least one."""
    unit = next((name for name in reversed("mhd") if seconds >= SECONDS[name]), None)
    return f"{seconds:.0f} s" if unit is None else f"{seconds // SECONDS[unit]:.0f} {unit.replace('m', 'min')}"


def _held(run: CleanedRun) -> str:
    """Methods with their k or, where that is too long or nothing, the number of files."""
    n_files = len(run.contents.artifacts)
    methods = ", ".join(f"{name} k={','.join(map(str, ks))}" for name, ks in run.methods.items())
    files = f"{n_files} file" + ("" if n_files == 1 else "s")
    text = f"{files}: {methods}" if methods else files
    return text if len(text) <= MOST_HELD else f"{text[: MOST_HELD - 1]}…"


def _as_json(done: Cleaned, dry_run: bool) -> str:
    runs = [
        {
            "name": run.contents.path.name,
            "path": str(run.contents.path),
            "state": run.state,
            "seconds_unused": round(run.contents.seconds_unused),
            "bytes": run.contents.size,
            "files": list(run.contents.artifacts),
            "foreign": list(run.contents.foreign),
            "methods": run.methods,
        }
        for run in done.runs
    ]
    gone = done.with_state(REMOVED, TO_REMOVE)
    total = {"count": len(gone), "bytes": sum(run.contents.size for run in gone)}
    facts = {"schema": 1, "dry_run": dry_run, "folder": str(done.folder), "left_alone": list(done.strangers)}
    return json.dumps({**facts, "runs": runs, "total": total}, indent=1)
