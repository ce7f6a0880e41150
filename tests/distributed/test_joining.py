"""A rank whose partner never starts gives up in time, with one message."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cli.cli_tools import ENVIRONMENT, Project, Run, quick_python, refused

from sublaplace_cli.distributed import process_group
from sublaplace_cli.distributed.process_group import ProcessGroup
from sublaplace_cli.distributed.ranks import RankInfo
from sublaplace_cli.errors import RunError

LIMIT = 2  # seconds, in place of two minutes
PROGRAM = f"""
import datetime
from sublaplace_cli.distributed import process_group
process_group.JOIN_TIMEOUT = datetime.timedelta(seconds={LIMIT})
import sys
sys.argv = ["sublaplace", "evaluate", "--k", "5"]
from sublaplace_cli.__main__ import main
main()
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(folder: Path, rank: int, size: int, port: int, **more: str) -> subprocess.Popen[str]:
    env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more}
    return subprocess.Popen(
        [*quick_python(), "-c", PROGRAM],
        cwd=folder,
        env={**ENVIRONMENT, **{key: str(value) for key, value in env.items()}},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> Run:
    out, err = process.communicate(timeout=60)
    return Run(process.returncode, out, err)


def gave_up(run: Run, rank: int, size: int) -> None:
    """The message and the hint, and not a line more."""
    refused(run, f"error: rank {rank} of {size} could not join the others within {LIMIT} s", "127.0.0.1:", code=3)
    assert len(run.err.strip().splitlines()) == 2, run.err


def test_the_limit_is_the_one_of_the_guide() -> None:
    assert timedelta(minutes=2) == process_group.JOIN_TIMEOUT
    guide = Path(__file__).parents[2].joinpath("sublaplace_cli/guide/devices.md").read_text()
    assert "Ranks that do not find each other give up after two minutes." in guide


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("local_rank", ["its own", "0"])
def test_a_rank_alone_gives_up(tmp_path: Path, rank: int, local_rank: str) -> None:
    project = Project(tmp_path / "p")
    more = {} if local_rank == "its own" else {"LOCAL_RANK": local_rank}
    begin = time.monotonic()
    gave_up(ended(start(project.folder, rank, 2, free_port(), **more)), rank, 2)
    assert LIMIT < time.monotonic() - begin < LIMIT + 8


def test_two_of_three_ranks_give_up_with_one_message(tmp_path: Path) -> None:
    project, port = Project(tmp_path / "p"), free_port()
    first, second = [ended(one) for one in [start(project.folder, rank, 3, port) for rank in range(2)]]
    gave_up(first, 0, 3)
    assert (second.code, second.out, second.err) == (3, "", "")


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    """It accepts the connection and stays silent."""
    project = Project(tmp_path / "p")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gave_up(ended(start(project.folder, 1, 2, silent.getsockname()[1])), 1, 2)


def test_a_port_in_use_is_reported_at_once(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = ended(start(project.folder, 0, 2, taken.getsockname()[1]))
    refused(run, "error: rank 0 of 2 could not join the others: ", "EADDRINUSE", code=3)
    assert len(run.err.strip().splitlines()) == 2, run.err


def test_the_limit_holds_where_the_rendezvous_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(process_group, "JOIN_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(ProcessGroup, "_join", lambda self: release.wait(30))
    monkeypatch.setitem(os.environ, "MASTER_ADDR", "node0")
    monkeypatch.setitem(os.environ, "MASTER_PORT", "29400")
    import torch

    begin = time.monotonic()
    with pytest.raises(RunError, match=r"rank 0 of 2 could not join the others within 1 s") as caught:
        ProcessGroup(RankInfo(0, 2), torch.device("cpu"))
    assert time.monotonic() - begin < 5
    assert caught.value.hint == "check that all ranks have started and can reach node0:29400"
    release.set()
