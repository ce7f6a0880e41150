"""Text from outside (names, paths, cells, messages of libraries) as plain text: shown, never acted on.

Names are kept as they are until they leave the program. Each exit applies one function of this module: to a line of a
terminal or of a log, to a cell of a csv file, to JSON. Ordinary text passes unchanged.
"""

import re
from functools import cache
from typing import Any

# Invisible or reordering characters, surrogates (bytes that are not UTF-8) and noncharacters; not the joiners U+200C
# and U+200D, which words of some languages need.
_HIDDEN = (
    "\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f"
)
_CONTROL = f"\x00-\x1f{_HIDDEN}"
# GitHub's runner obeys a line that starts with `::`, after any spaces, and `##[` anywhere in a line.
_RUNNER_COMMAND = rf"\A(?:(?![{_CONTROL}])\s)*:(?=:)|\#(?=\#\[)"
_FORMULA_STARTS = ("=", "+", "-", "@")


def _escape(match: re.Match[str]) -> str:
    spaces, character = match[0][:-1], match[0][-1]
    escaped = character.encode("unicode_escape").decode()
    return spaces + (escaped if escaped != character else f"\\x{ord(character):02x}")


def _escape_in_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # on first use: `--help` needs none


def visible(text: str) -> str:
    """Text as one line in which every control character is a visible escape such as \\x1b or \\n.

    A line break of our own is therefore never part of a text: messages of several lines are sequences of lines.
    """
    return _compiled(f"[{_CONTROL}]|{_RUNNER_COMMAND}").sub(_escape, text)


def visible_json(text: str) -> str:
    """The same for text that is already JSON: the escapes are JSON's own, so that readers see the same values."""
    return _compiled(rf"[{_HIDDEN}]|\#(?=\#\[)").sub(_escape_in_json, text)


def csv_cell(value: Any) -> Any:
    """A cell of a csv file: a text that a spreadsheet would take for a formula gets an apostrophe, as it expects."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
