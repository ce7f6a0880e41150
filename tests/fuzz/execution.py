"""Runs a case as a process of the tool, and says whether it ended as promised."""

from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.cli_tools import ENVIRONMENT, core, fork_server, strict
from fuzz.base import CANARY, MEMORY
from fuzz.case import Case, state

LONGEST_SECONDS = 60.0
MOST_BYTES = MEMORY + 10**9
CODES = {0: "done", 1: "gate", 2: "refused", 3: "failed", 4: "unjudged"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e]")
RUNNER_COMMAND = re.compile(r"^\s*::|##\[", re.MULTILINE)


@dataclass(frozen=True)
class Ending:
    """How a process ended; `code` is None if it had to be killed after LONGEST_SECONDS."""

    code: int | None
    out: str
    err: str
    seconds: float
    peak: int


class Laboratory:
    """A valid project, its result, and a place for the folders of cases."""

    def __init__(self, base: Path, folder: Path, expected: Any) -> None:
        self.base, self.folder, self.expected = base, folder, expected

    def judge(self, case: Case) -> tuple[Ending, list[str]]:
        """How the case ended, and what was not as promised."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            before = case.set_up(self.base, place / "project")
            ending = run(case.words, place)
            problems = problems_of(ending, case.words)
            problems += _left_alone(before, place / "project", bool({"--force", "--overwrite"} & set(case.words)))
            if case.same and ending.code == 0 and not problems and core(strict(ending.out)) != self.expected:
                problems.append("another result than from the file without damage")
            return ending, problems
        finally:
            shutil.rmtree(place)


def run(words: list[str], place: Path) -> Ending:
    """The tool in `place / "project"`, with its streams in `place`."""
    job = {"words": ["-m", "sublaplace_cli", *words], "cwd": str(place / "project"), "env": ENVIRONMENT, "fault": None}
    begin = time.monotonic()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        open("/dev/null") as nothing, open(place / "out", "wb") as out, open(place / "err", "wb") as err,
    ):  # fmt: skip
        server.settimeout(LONGEST_SECONDS)
        server.connect(fork_server())
        socket.send_fds(server, [json.dumps(job).encode()], [stream.fileno() for stream in (nothing, out, err)])
        try:
            answer = json.loads(server.recv(1 << 16))
        except TimeoutError:  # the server kills a job whose client goes away
            answer = {"code": None, "peak": 0}
    texts = [(place / name).read_bytes().decode("utf-8", "surrogateescape") for name in ("out", "err")]
    return Ending(answer["code"], *texts, time.monotonic() - begin, answer["peak"])


def problems_of(ending: Ending, words: list[str]) -> list[str]:
    """Broken promises that can be seen from outside."""
    found = []
    if ending.code is None:
        found.append(f"no end within {LONGEST_SECONDS:.0f} s")
    elif ending.code not in CODES:
        found.append(f"exit code {ending.code}")
    elif ending.code >= 2 and not ending.err.strip():
        found.append("an error without a message")
    if re.search(r"^\s*error: .*\bunexpected [A-Z]\w*", ending.err, re.MULTILINE):
        found.append("an error that is not explained")
    if "Traceback (most recent" in ending.err and "--debug" not in words:
        found.append("a traceback")
    if ending.peak > MOST_BYTES:
        found.append(f"{ending.peak >> 20} MiB of memory")
    for name, text in (("stdout", ending.out), ("stderr", ending.err)):
        if control := CONTROL.search(text):
            found.append(f"{control[0]!r} on {name}")
        if RUNNER_COMMAND.search(text) and "github" not in words:
            found.append(f"a command for a CI runner on {name}")
    if ending.code == 0 and "--json" in words and not _is_result(ending.out):
        found.append("no JSON on stdout")
    return found


def _is_result(text: str) -> bool:
    try:
        return isinstance(strict(text), dict)
    except ValueError:
        return False


def _left_alone(before: dict[str, Any], project: Path, may_overwrite: bool) -> list[str]:
    after = before if may_overwrite else state(project)
    found = [f"the file {name} was changed" for name, content in before.items() if after.get(name) != content]
    return [*found, "code of a file was executed"] if (project / CANARY).exists() else found
