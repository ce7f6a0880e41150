"""Heartbeat between ranks, by keys in the store that they joined with: notices a rank that is lost or has failed."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RunError, SublaplaceError
from ..plain_text import visible
from .ranks import LEADER_RANK

BEAT_INTERVAL = 1.0  # seconds between two heartbeats
LOST_AFTER = 30.0  # seconds without a heartbeat after which a rank counts as lost
GRACE_PERIOD = 5.0  # seconds for the work of this rank to notice a failure itself
REPORT_WAIT = 2.0  # seconds to wait for a report or a confirmation from another rank
FAILED_KEY, PRINTED_KEY = "failed", "printed"
CONTINUE_HINT = "finished parts are kept; run the same command again to continue"


class Failure(RunError):
    """Why the ranks cannot continue together."""

    def __init__(
        self, message: str | Sequence[str], hint: str | None = CONTINUE_HINT, exit_code: int = RunError.exit_code
    ) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code

    @property
    def text(self) -> str:
        return "".join(f"{visible(line)}\n" for line in self.shown_lines(self.hint))


class Heartbeat(threading.Thread):
    """Heartbeat of this rank, and the first failure it notices. The leader watches all ranks, the others the leader."""

    def __init__(self, store: Any, rank: int, members: Sequence[dict[str, Any]]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.store, self.rank, self.members = store, rank, members
        self.failure: Failure | None = None
        self.stopped = threading.Event()
        self.store_lock = threading.Lock()  # the store serves one thread at a time
        watched = [m["rank"] for m in members if m["rank"] != rank] if rank == LEADER_RANK else [LEADER_RANK]
        self.last_beats = {other: ("", time.monotonic()) for other in watched}
        self.last_answer = time.monotonic()
        self.store.set(f"alive/{self.rank}", "0")

    def run(self) -> None:
        # Another thread uses the store, so that this one can measure how long the store has not answered.
        threading.Thread(target=self._poll_store, name="heartbeat-store", daemon=True).start()
        while not self.stopped.wait(BEAT_INTERVAL / 2) and self.failure is None:
            if time.monotonic() - self.last_answer > LOST_AFTER:
                what = f"has not answered for {LOST_AFTER:.0f} s"
                self.failure = Failure(f"the machine of rank 0 or of the launcher {what}")
        if self.failure is not None and not self.stopped.wait(GRACE_PERIOD):
            self._abort_process(self.failure)

    def stop(self) -> None:
        self.stopped.set()
        self.join(GRACE_PERIOD)

    def close(self) -> None:
        """Stop because of a signal, and record it, so that the other ranks do not report this one as lost."""
        self.stopped.set()
        self._try_store(lambda store: store.set(f"closed/{self.rank}", ""))

    def _poll_store(self) -> None:
        beats = 0
        while not self.stopped.wait(BEAT_INTERVAL) and self.failure is None:
            beats += 1
            try:
                with self._locked_store():
                    found = self._check_others(beats)
                self.last_answer = time.monotonic()
            except Exception:  # the type depends on how the connection to the store broke
                found = self.ended_rank() or Failure("the connection to rank 0 or to the launcher is lost")
            self.failure = self.failure or found

    @contextmanager
    def _locked_store(self) -> Iterator[Any]:
        """The store, for one thread at a time; raises if another thread still waits for its response."""
        if not self.store_lock.acquire(timeout=REPORT_WAIT):
            raise TimeoutError("the store does not answer")
        try:
            yield self.store
        finally:
            self.store_lock.release()

    def _try_store(self, use: Callable[[Any], Any]) -> Any:
        """The result of `use` on the store; None if the store is gone or does not respond."""
        try:
            with self._locked_store() as store:
                return use(store)
        except Exception:  # the type depends on how the connection to the store broke
            return None

    def _store_has(self, key: str) -> bool:
        return bool(self._try_store(lambda store: store.check([key])))

    def _check_others(self, beats: int) -> Failure | None:
        self.store.set(f"alive/{self.rank}", str(beats))
        if (reported := self._reported_failure()) is not None:
            return reported
        now = time.monotonic()
        for other, (last, since) in self.last_beats.items():
            key = f"alive/{other}"
            beat = self.store.get(key).decode() if self.store.check([key]) else ""
            if beat != last:
                self.last_beats[other] = (beat, now)
            elif now - since > LOST_AFTER:
                return self._failure_of(self.members[other], f"has sent no heartbeat for {LOST_AFTER:.0f} s")
        return None

    def _failure_of(self, member: dict[str, Any], what: str) -> Failure:
        process = f"process {member['process']} on {member['host']}"
        return Failure(f"rank {member['rank']} of {len(self.members)} ({process}) {what}")

    def _reported_failure(self) -> Failure | None:
        report = json.loads(self.store.get(FAILED_KEY)) if self.store.check([FAILED_KEY]) else None
        if report is None or report["rank"] == self.rank:
            return None
        host = self.members[report["rank"]]["host"]
        first, *rest = report["lines"]
        lines = [f"rank {report['rank']} of {len(self.members)} on {host}: {first}", *rest]
        return Failure(lines, report["hint"], report["exit_code"])

    def find_cause(self) -> Failure | None:
        """Why a connection broke: the error another rank reported, or the process on this machine that has ended."""
        deadline = time.monotonic() + REPORT_WAIT
        while time.monotonic() < deadline:
            try:
                with self._locked_store():
                    if (reported := self._reported_failure()) is not None:
                        return reported
            except Exception:  # the store is gone too
                deadline = min(deadline, time.monotonic() + REPORT_WAIT / 4)
            if self.ended_rank() is not None:  # it reports nothing more
                deadline = min(deadline, time.monotonic() + REPORT_WAIT / 8)
            time.sleep(REPORT_WAIT / 40)
        return self.ended_rank()

    def ended_rank(self) -> Failure | None:
        """A rank on this machine whose process has ended, unless it closed because of a signal."""
        ended = [m for m in self.members if self._has_ended(m) and not self._store_has(f"closed/{m['rank']}")]
        return self._failure_of(ended[0], "ended unexpectedly (killed, or out of memory)") if ended else None

    def _has_ended(self, member: dict[str, Any]) -> bool:
        """Whether the member's process has ended; False on another machine."""
        return member["host"] == self.members[self.rank]["host"] and process_has_ended(member["process"])

    def report_failure(self, error: SublaplaceError, show: Callable[[], None]) -> None:
        """Report an error of this rank to the others, and `show` it if this is the rank that prints."""
        report = {"rank": self.rank, "lines": error.lines, "hint": error.hint, "exit_code": error.exit_code}
        self.stopped.set()
        self._try_store(lambda store: store.compare_set(FAILED_KEY, "", json.dumps(report)))
        # The leader prints. If it has ended without printing, the first other rank that notices does.
        if self.rank != LEADER_RANK and self._leader_printed():
            return
        if self.claim_printing():
            show()
        if self.rank == LEADER_RANK:  # the store may live in this process: the others must read it before it ends
            others = [m for m in self.members if m["rank"] != self.rank]
            _wait_for(lambda: all(self._store_has(f"confirmed/{m['rank']}") or self._has_ended(m) for m in others))

    def claim_printing(self) -> bool:
        """Whether this rank prints: the first caller does. Without a store, the first live rank per machine."""
        printing = self._try_store(lambda store: store.compare_set(PRINTED_KEY, "", str(self.rank)).decode())
        if printing is not None:
            return printing == str(self.rank)
        # A killed process closes its connections shortly before it counts as ended; a leader that prints stays longer.
        host = self.members[self.rank]["host"]
        lower = [m["process"] for m in self.members[: self.rank] if m["host"] == host]
        return _wait_for(lambda: all(process_has_ended(p, or_stopped=True) for p in lower), share=0.5)

    def _leader_printed(self) -> bool:
        """Whether another rank has printed, within the time the leader may need to notice the failure."""
        deadline = time.monotonic() + 2 * BEAT_INTERVAL + 2 * GRACE_PERIOD
        while time.monotonic() < deadline:
            printed = self._try_store(lambda store: store.check([PRINTED_KEY]))
            if printed:
                self._try_store(lambda store: store.set(f"confirmed/{self.rank}", ""))
                return True
            if printed is None or self._has_ended(self.members[LEADER_RANK]):
                return False  # `claim_printing` decides
            time.sleep(REPORT_WAIT / 40)
        return False

    def _abort_process(self, failure: Failure) -> None:
        """End this process when its work does not notice the failure, for instance in a long computation."""

        def show() -> None:
            stderr = sys.__stderr__ or sys.stderr
            stderr.write(failure.text)
            stderr.flush()

        self.report_failure(failure, show)
        os._exit(failure.exit_code)


def _wait_for(condition: Callable[[], bool], share: float = 1.0) -> bool:
    """Whether the condition becomes true within this share of REPORT_WAIT."""
    deadline = time.monotonic() + share * REPORT_WAIT
    while not (reached := condition()) and time.monotonic() < deadline:
        time.sleep(REPORT_WAIT / 40)
    return reached


def process_has_ended(process: int, or_stopped: bool = False) -> bool:
    """Whether a process of this machine has ended; a zombie has."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX" + "Tt" * or_stopped
    except ProcessLookupError:
        return True
    except OSError:  # a process of another user, or no /proc
        return False
