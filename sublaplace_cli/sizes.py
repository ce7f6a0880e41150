"""Sizes in bytes: as the user writes them and as messages show them."""

import re

from .errors import UserError

_SIZE_UNITS = {
    **{"": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6},
    **{"g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}


def parse_bytes(text: str, option: str) -> int:
    """`8GiB`, `500MB`, `1.5g`, `1000000` → bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    size = float(match[1]) * _SIZE_UNITS.get(match[2].lower(), 0) if match else 0.0
    if not 1 <= size < 2**62:
        raise UserError(f"{option} {text!r} is not a size", hint="expected a number and a unit, such as 8GiB or 500MB")
    return int(size)


def format_bytes(count: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
