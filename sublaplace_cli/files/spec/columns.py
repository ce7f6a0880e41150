"""Which columns or arrays of a file are inputs, texts and targets, as typed, frozen records."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from . import values
from .part import Part, refuse, wrong

MOST_TOKENS = 100_000  # of a row


def _input_columns(value: object) -> object:
    """One column, several, or a mapping from the network's inputs to columns."""
    if not isinstance(value, Mapping) or not value:
        return values.one_or_list(values.column)(value)
    return dict(zip(map(values.text, value), values.each(values.column, value.items()), strict=True))


class ColumnsSpec(Part):
    """Which columns of a table are the target and the input."""

    target: values.ColumnNames | None = None
    input: Annotated[str | int | list[str | int] | dict[str, str | int], values.by_hand(_input_columns)] = "rest"
    exclude: values.ColumnNames | None = None  # not among the rest


def _array_names(value: object) -> object:
    if isinstance(value, Mapping) and value:
        return dict(zip(value, values.each(values.text, value.items()), strict=True))
    if isinstance(value, (str, list)):
        return values.one_or_list(values.text)(value)
    raise refuse(wrong("an array's name, a list or a mapping of names", value))


class ArraysSpec(Part):
    """Which arrays of a file are the input and the target."""

    input: Annotated[str | dict[str, str] | list[str], values.by_hand(_array_names)]
    target: values.Text | None = None


class TextSpec(Part):
    """The column of a table that holds texts, and how they become rows of token ids."""

    column: values.Column
    pair: values.Column | None = None  # the second text of each row
    max_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = 128
    tokenizer: values.Text | None = None  # a local folder; None: that of the network


def _class_name(value: object) -> str:
    """A label; YAML reads the words true and false as booleans."""
    name = str(value) if isinstance(value, bool) else values.text(value)
    if name != name.strip():
        raise refuse(wrong("a text without spaces around it", value))
    return name


def class_labels(value: object) -> list[str]:
    if not isinstance(value, list) or len(value) < 2:
        raise refuse(wrong("a list of at least two labels", value))
    names = values.each(_class_name, enumerate(value))
    if len(set(names)) < len(names):
        raise refuse("expected each label once")
    return names
