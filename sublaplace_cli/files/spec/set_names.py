"""Names of sets of rows: they are parts of file names, of limits and of columns."""

import re

EXPECTED = "expected a name of at most 40 letters, digits and _, with no digit first"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


def is_set_name(name: str) -> bool:
    """Whether a set of test rows, or of out-of-distribution rows, may have this name."""
    return _NAME.fullmatch(name) is not None
