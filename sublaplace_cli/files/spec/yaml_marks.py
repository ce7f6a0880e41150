"""YAML text → plain values, and the line and column of every key and value.

Works on PyYAML's events, not on its constructors: no tag can run code, no alias can expand without bound, and plain
scalars follow the YAML 1.2 core rules (`1e3` is a number; `yes`, `0:353` and dates are text).
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

Location = tuple[str | int, ...]  # keys and list positions from the top down to a value

MAX_YAML_DEPTH = 32
_INT = re.compile(r"[-+]?[0-9]+")
_BASED_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT_DIGITS = 18  # fits a machine integer; a longer number is no row, seed or size and becomes a float
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # cannot be part of a path or be printed


class Mark(NamedTuple):
    """A position in the file; both numbers start at 1."""

    line: int
    column: int


class YamlProblem(NamedTuple):
    """A problem of the YAML itself; `location` is empty if it concerns no value."""

    mark: Mark
    location: Location
    message: str


@dataclass
class MarkedYaml:
    """The values, their marks and the problems; without `complete` there is no value."""

    value: object = None
    complete: bool = False
    keys: dict[Location, Mark] = field(default_factory=dict)
    values: dict[Location, Mark] = field(default_factory=dict)
    problems: list[YamlProblem] = field(default_factory=list)


class _Unreadable(Exception):
    """(mark, message): nothing after this mark can be parsed."""


def read_marked(text: str) -> MarkedYaml:
    """The one YAML document in `text`; its problems are listed, never raised."""
    marked = MarkedYaml()
    try:
        marked.value = _YamlBuilder(text, marked).document()
        marked.complete = True
    except _Unreadable as stop:
        marked.problems.append(YamlProblem(stop.args[0], (), stop.args[1]))
    return marked


def mark_at(text: str, index: int) -> Mark:
    """The line and column of a character of `text`."""
    before = text[:index]
    return Mark(before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1)


class _YamlBuilder:
    def __init__(self, text: str, marked: MarkedYaml) -> None:
        self.text = text
        self.marked = marked
        try:
            self.loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            character = f"U+{ord(text[error.position]):04X}"
            raise _Unreadable(mark_at(text, error.position), f"the character {character} is not allowed") from None

    def document(self) -> object:
        self._next()  # the start of the stream
        if isinstance(self._next(), yaml.StreamEndEvent):
            raise _Unreadable(Mark(1, 1), "the file is empty; expected a mapping with version, task, model, data")
        value = self._value(self._next(), ())
        self._next()  # the end of the document
        after = self._next()
        if not isinstance(after, yaml.StreamEndEvent):
            raise _Unreadable(_mark(after.start_mark), "a second document begins here; expected only one")
        return value

    def _next(self) -> yaml.Event:
        try:
            return self.loader.get_event()
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except (yaml.YAMLError, ValueError, OverflowError):  # the latter two: an impossible \U escape
            raise _Unreadable(_mark(self.loader.get_mark()), "this is not valid YAML") from None

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> _Unreadable:
        mark = error.problem_mark or error.context_mark or self.loader.get_mark()
        here = self.text[mark.index : mark.index + 1]
        if here == "\t":
            return _Unreadable(_mark(mark), "found a tab; YAML allows only spaces for indentation")
        began = error.context_mark
        if began is not None and self.text[began.index : began.index + 1] == "*":
            return _Unreadable(_mark(began), 'a text that starts with * must be quoted, as in "*.bias"')
        words = " ".join(filter(None, (error.context, error.problem))).split()
        explanation = " ".join(word if word.isprintable() else ascii(word)[1:-1] for word in words)
        advice = '; quote a text that contains a colon, as in "353:"' if here == ":" else ""
        return _Unreadable(_mark(mark), f"this is not valid YAML: {explanation}{advice}")

    def _problem(self, mark: Mark, location: Location, message: str) -> None:
        self.marked.problems.append(YamlProblem(mark, location, message))

    def _value(self, event: yaml.Event, location: Location) -> object:
        """One value; the only function that calls itself, once per level."""
        mark = _mark(event.start_mark)
        # setdefault: the first of duplicate keys counts
        self.marked.values.setdefault(location, mark)
        if len(location) > MAX_YAML_DEPTH:
            raise _Unreadable(mark, f"nested deeper than {MAX_YAML_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            self._problem(mark, location, "aliases (*name) are not supported; repeat the value, or quote a text")
            return None
        if getattr(event, "tag", None) is not None:
            self._problem(mark, location, "tags (!name) are not supported; remove it, or quote a text")
        if isinstance(event, yaml.MappingStartEvent):
            mapping: dict[str, object] = {}
            while not isinstance(event := self._next(), yaml.MappingEndEvent):
                key = self._key(event, location)
                value = self._value(self._next(), (*location, "" if key is None else key))
                if key is not None:
                    mapping.setdefault(key, value)
            return mapping
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[object] = []
            while not isinstance(event := self._next(), yaml.SequenceEndEvent):
                items.append(self._value(event, (*location, len(items))))
            return items
        return self._scalar(event, location)

    def _key(self, event: yaml.Event, location: Location) -> str | None:
        """A key and its mark; None for one that is not a text."""
        mark = _mark(event.start_mark)
        if not isinstance(event, yaml.ScalarEvent):
            raise _Unreadable(mark, "expected a text as key; quote a text that starts with *, [ or {")
        key = self._scalar(event, ())
        if not isinstance(key, str):
            self._problem(mark, (), f"expected a text as key, got {event.value or 'nothing'}; put it in quotes")
            return None
        below = (*location, key)
        if below in self.marked.keys:
            first = self.marked.keys[below]
            self._problem(mark, below, f"duplicate key, first used at line {first.line}")
        self.marked.keys.setdefault(below, mark)
        return key

    def _scalar(self, event: Any, location: Location) -> object:
        mark, text = _mark(event.start_mark), event.value
        if _NO_TEXT.search(text):
            raise _Unreadable(mark, "the text has a character that is not allowed (NUL or half a surrogate pair)")
        if not event.implicit[0]:  # quoted, or a block of text
            return text
        if text in _WORDS:
            return _WORDS[text]
        number = _number(text)
        if isinstance(number, float) and not math.isfinite(number):
            self._problem(mark, location, f"expected a finite number, got {text[:40]}")
            return None
        return text if number is None else number


def _number(text: str) -> int | float | None:
    if _NOT_FINITE.fullmatch(text):
        return math.inf
    short = len(text) <= _INT_DIGITS
    if _BASED_INT.fullmatch(text):
        return int(text, 0) if short else math.inf
    if _INT.fullmatch(text) and short:
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else None


def _mark(mark: Any) -> Mark:  # yaml.Mark; its stubs allow None, its parser does not
    return Mark(mark.line + 1, mark.column + 1)
