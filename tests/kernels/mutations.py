"""Kernels with one fault each, by the variable KERNEL_FAULT: the tests must fail for every one of them."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from sublaplace_cli.core import kernels

NAME = "sublaplace_cli.core.kernels.triton_code"
SOURCE = Path(kernels.__file__).with_name("triton_code.py")
# What is replaced, everywhere in the source, and by what.
FAULTS = {
    "offsets of 32 bits": (".to(tl.int64)", ""),
    "columns beyond the end are read": (" & inside[None, :]", ""),
    "rows beyond the end are read": ("mask=in_rows[:, None] & inside[None, :]", "mask=inside[None, :]"),
    "K is written beyond its end": (", mask=inside)", ")"),
    "nothing in place of what is not read": (", other=0.0)", ")"),
    "tf32": ('"ieee"', '"tf32"'),
    "below the diagonal is left out one tile too early": (
        "if i * ROWS >= (j + 1) * COLUMNS",
        "if i * ROWS >= j * COLUMNS",
    ),
    "the shift is forgotten": (" + tl.load(numbers + 1)", ""),
    "the last level is left out": ("for left_out in range(S)", "for left_out in range(1, S)"),
}


def apply(fault: str, folder: Path) -> ModuleType:
    """Import the faulty kernels in place of the real ones."""
    old, new = FAULTS[fault]
    text = SOURCE.read_text()
    assert old in text, f"{fault}: the source has changed"
    path = folder / "faulty.py"
    path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


def asked_for() -> str | None:
    return os.environ.get("KERNEL_FAULT")
