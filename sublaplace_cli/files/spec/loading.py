"""Finding and loading `sublaplace.yaml`: every problem at once, each with its file, line and column."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from ...errors import UserError
from ...json_files import open_regular
from .models import Spec
from .part import PROBLEMS_SHOWN, Finding, findings_of, wrong
from .yaml_marks import Location, Mark, MarkedYaml, YamlProblem, mark_at, read_marked

SPEC_NAME = "sublaplace.yaml"
MAX_SPEC_BYTES = 2**20
LONGEST_SUBJECT, LONGEST_MESSAGE = 200, 600


class SpecError(UserError):
    """All problems of a spec, one `file:line:column: field: message` per line."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(problems)
        self.problems = problems


@dataclass(frozen=True)
class LoadedSpec:
    """A valid spec and the file it came from."""

    spec: Spec
    path: Path
    text: str
    sha256: str  # of the file's bytes
    folder: Path
    marks: Mapping[str, Mark] = field(default_factory=dict, repr=False, compare=False)  # by dotted field

    def resolve(self, value: str, field: str, allow_outside: bool) -> Path:
        """The path of `value`, relative to the spec's folder; it must be inside unless `allow_outside`."""
        path, shown = self.folder / value, _shortened(_printable(value), LONGEST_SUBJECT)
        try:
            inside = path.resolve().is_relative_to(self.folder.resolve())
            path.exists()  # raises what any use of the path would raise
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name too long, a NUL
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{self._prefix(field)}: cannot follow the path {shown}: {reason}") from None
        if not (inside or allow_outside):
            message = f"{self._prefix(field)}: the path {shown} leads out of the folder {self.folder}"
            raise UserError(message, hint="move the file into that folder, or allow it with --allow-outside")
        return path

    def _prefix(self, field: str) -> str:
        mark = self.marks.get(field)
        where = "" if mark is None else f":{mark.line}:{mark.column}"
        return f"{_printable(str(self.path))}{where}: {field}"


def find_spec(start: Path) -> Path:
    """The nearest `sublaplace.yaml`, searched upward from the folder `start`."""
    folder = start.absolute()
    for candidate in (folder, *folder.parents):
        if os.path.isfile(candidate / SPEC_NAME):
            return candidate / SPEC_NAME
    hint = "give one with --spec FILE, or run in the folder of one"
    raise UserError(f"no {SPEC_NAME} in {_printable(str(folder))} or any folder above it", hint=hint)


def load_spec(path: Path) -> LoadedSpec:
    """The spec in the file `path`; all its problems are raised together as one `SpecError`."""
    content, text = _read(path)
    marked = read_marked(text)
    spec, problems = _validate(marked)
    if spec is None or problems:
        raise SpecError(tuple(_lines(path, problems)))
    marks = {_dotted(location): mark for location, mark in marked.values.items()}
    return LoadedSpec(spec, path, text, hashlib.sha256(content).hexdigest(), path.absolute().parent, marks)


def _read(path: Path) -> tuple[bytes, str]:
    try:
        with open_regular(path) as file:
            content = file.read(MAX_SPEC_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        hint = f"expected a YAML file; give one with --spec FILE (default: the nearest {SPEC_NAME})"
        raise UserError(f"cannot read the spec {_printable(str(path))}: {reason}", hint=hint) from None
    if len(content) > MAX_SPEC_BYTES:
        problem = YamlProblem(Mark(1, 1), (), "the file is larger than 1 MiB; a spec is a short text")
        raise SpecError((_line(path, problem),))
    try:
        return content, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        readable = content[: error.start].decode("utf-8", errors="replace")
        problem = YamlProblem(mark_at(readable, len(readable)), (), "not UTF-8 text; save the file as UTF-8")
        raise SpecError((_line(path, problem),)) from None


def _validate(marked: MarkedYaml) -> tuple[Spec | None, list[YamlProblem]]:
    if not marked.complete or len(marked.problems) > PROBLEMS_SHOWN:  # no room for those that the models would find
        return None, marked.problems
    if not isinstance(marked.value, dict):
        message = wrong("a mapping with version, task, model, data", marked.value)
        return None, [*marked.problems, YamlProblem(marked.values[()], (), message)]
    try:
        return Spec.model_validate(marked.value, by_alias=True, by_name=False), marked.problems
    except ValidationError as error:
        return None, [*marked.problems, *_with_marks(findings_of(error), marked)]


def _with_marks(findings: list[Finding], marked: MarkedYaml) -> Iterator[YamlProblem]:
    unreadable = {p.location for p in marked.problems if marked.values.get(p.location) == p.mark}
    for location, message, at_key in findings:
        # a value that could not be read has been reported: ignore what the models say about its replacement
        if not any(location[:length] in unreadable for length in range(len(location) + 1)):
            nearest = location
            while nearest not in marked.values:  # a missing key: the mapping that should hold it
                nearest = nearest[:-1]
            yield YamlProblem(marked.keys[location] if at_key else marked.values[nearest], location, message)


def _lines(path: Path, problems: list[YamlProblem]) -> Iterator[str]:
    """The first problems of the file, and how many more there are."""
    for problem in sorted(problems, key=lambda p: p.mark)[:PROBLEMS_SHOWN]:
        yield _line(path, problem)
    if len(problems) > PROBLEMS_SHOWN:
        yield f"{_printable(str(path))}: and {len(problems) - PROBLEMS_SHOWN} more problems"


def _line(path: Path, problem: YamlProblem) -> str:
    subject = f"{_dotted(problem.location)}: " if problem.location else ""
    position = f"{_printable(str(path))}:{problem.mark.line}:{problem.mark.column}"
    return f"{position}: {_shortened(subject, LONGEST_SUBJECT)}{_shortened(problem.message, LONGEST_MESSAGE)}"


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]}...{text[-length // 2 :]}"


def _dotted(location: Location) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" for part in location)
    return "".join(parts).removeprefix(".")


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
