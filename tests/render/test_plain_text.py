"""Text from outside: what is escaped, and that ordinary text is not."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from sublaplace_cli.plain_text import csv_cell, visible, visible_json

ORDINARY = [
    *("layer1.0.weight", "C:\\runs\\a.pt", "größe μ 模型 שלום", "a::b", "##", "# [x]", "names:[a-z]*", "👩\u200d💻"),
    *("می\u200cخواهم", "std::vector: a", "a\xa0b", "", ":", "error: x", "$a$ `b` <c>"),
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_unchanged(text):
    assert visible(text) == csv_cell(text) == text
    assert visible_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[31m\x00\x7f\x9b", "\\x1b[31m\\x00\\x7f\\x9b"),
        ("\u202eabc\u2066\u2028\u200b", "\\u202eabc\\u2066\\u2028\\u200b"),
        ("\udcff\U000e0041", "\\udcff\\U000e0041"),
        ("::error::a", "\\x3a:error::a"),
        (" \u3000::error::a", " \u3000\\x3a:error::a"),
        ("\n::error::a", "\\n::error::a"),
        ("a ##[error]b ###[c", "a \\x23#[error]b #\\x23#[c"),
    ],
)
def test_what_could_act_is_escaped(text, shown):
    assert visible(text) == shown
    assert visible(shown) == shown
    escaped = visible_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(escaped) == text
    assert "##[" not in escaped


def test_nothing_invisible_is_left():
    joiners = {"\u200c", "\u200d"}
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(character) in (
            *("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"),
        ):
            assert visible(character) != character, f"U+{code:04X}"
        elif unicodedata.category(character)[0] in "LMN" or character in joiners:
            assert visible(character) == character, f"U+{code:04X}"


def test_a_cell_of_a_spreadsheet_is_no_formula():
    assert [csv_cell(value) for value in ("=a", "+1", "-a", "@b", "a=b", -1, -1.5, None)] == [
        *("'=a", "'+1", "'-a", "'@b", "a=b"), -1, -1.5, None,
    ]  # fmt: skip
