"""`--test [NAME=]FILE`, typed once for each set of test rows."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..files.spec.set_names import EXPECTED, is_set_name


def named_test_files(words: Sequence[str]) -> tuple[str, ...]:
    """Each as NAME=FILE, with an absolute path; a file without a name has that of its stem."""
    found: dict[str, Path] = {}
    for word in words:
        name, equals, rest = word.partition("=")
        if not (equals and is_set_name(name)):  # a name of a file may have the sign too
            name, rest = Path(word).stem, word
        if not rest:
            raise UserError(f"--test {word!r} names no file", hint="for example: --test shifted=b.csv")
        if not is_set_name(name):
            problem = f"--test {word}: a set of test rows cannot be called {name!r}"
            raise UserError(problem, hint=f"give it a name: --test NAME={rest}; {EXPECTED}")
        if name in found:
            problem = f"--test {word}: there are two sets of the name '{name}'"
            raise UserError(problem, hint=f"give it another name: --test NAME={rest}")
        found[name] = Path(rest).absolute()
    return tuple(f"{name}={path}" for name, path in found.items())
