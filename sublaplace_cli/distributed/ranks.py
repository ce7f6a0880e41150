"""Which of several processes this is, as the launcher says.

Ranks come from torchrun, or from any launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import UserError

LEADER = 0


@dataclass(frozen=True)
class Place:
    """Where this process stands among all of them."""

    rank: int = LEADER
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == LEADER


def place() -> Place:
    """As the launcher says; alone where there is none."""
    if int_of("WORLD_SIZE", 1) < 2:
        return Place()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost connection is told by us, and once
    found = Place(int_of("RANK"), int_of("WORLD_SIZE"), int_of("LOCAL_RANK", 0), int_of("LOCAL_WORLD_SIZE", 1))
    if not 0 <= found.rank < found.size:
        raise UserError(f"RANK is {found.rank}, expected a number from 0 to WORLD_SIZE − 1 = {found.size - 1}")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise UserError(f"WORLD_SIZE is {found.size}, but {name} is not set", hint="start the ranks with torchrun")
    return found


def int_of(name: str, default: int | None = None) -> int:
    """A whole number of the environment."""
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError as error:
        raise UserError(f"{name} is {text!r}, expected a number", hint="start the ranks with torchrun") from error
