"""Rank of this process, from the environment that torchrun or another launcher sets."""

import os
import re
from dataclasses import dataclass

from ..errors import UserError

LEADER_RANK = 0  # the value of `core.workers.LEADER`, without its import of torch
LAUNCH_HINT = "start the ranks with torchrun"


@dataclass(frozen=True)
class RankInfo:
    """Rank of this process and number of ranks, over all machines and on this one."""

    rank: int = LEADER_RANK
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == LEADER_RANK


def current_rank() -> RankInfo:
    """Rank that the launcher set; a single rank without a launcher."""
    if _environment_int("WORLD_SIZE", 1) < 2:
        return RankInfo()
    rank, size = _environment_int("RANK"), _environment_int("WORLD_SIZE")
    info = RankInfo(rank, size, _environment_int("LOCAL_RANK", 0), _environment_int("LOCAL_WORLD_SIZE", 1))
    if not 0 <= rank < size:
        raise UserError(f"RANK is {rank}, expected a number from 0 to WORLD_SIZE − 1 = {size - 1}")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise UserError(f"WORLD_SIZE is {size}, but {name} is not set", hint=LAUNCH_HINT)
    return info


def _environment_int(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,6}", text or "", re.ASCII):
        shown = None if text is None else text[:40]
        raise UserError(f"{name} is {shown!r}, expected a number below a million", hint=LAUNCH_HINT)
    return int(text or "")
