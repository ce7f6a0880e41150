"""Watching over the other ranks: threads that say that this one is alive, and notice when another is not.

A collective fails at once when the process at its other end is gone. This is for all other cases: a rank in the midst
of a long computation, a machine that no longer answers, an error that another rank has to tell. What the ranks tell
each other is in the store that they joined by; it may go, or fall silent, with the machine that holds it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RunError, SublaplaceError
from .ranks import LEADER

BEAT = 1.0  # seconds between two signs of life
PATIENCE = 30.0  # seconds without one after which a rank is gone
GRACE = 5.0  # seconds for the work of this rank to notice by itself
EXPLANATION = 2.0  # seconds in which a rank that ended may have told why
FAILED, PRINTED = "failed", "printed"
KEPT = "finished parts are kept, the same command goes on from there"


@dataclass(frozen=True)
class Loss:
    """Why the ranks cannot go on together."""

    message: str
    hint: str | None = KEPT
    code: int = 3

    @classmethod
    def of(cls, member: dict[str, Any], size: int, why: str = "is gone (killed, or out of memory)") -> Loss:
        return cls(f"rank {member['rank']} of {size} (process {member['process']} on {member['host']}) {why}")

    def error(self) -> SublaplaceError:
        error = RunError(self.message, hint=self.hint)
        error.exit_code = self.code
        return error


class Heartbeat(threading.Thread):
    """Signs of life of this rank, and the loss of another. One thread asks the store, another judges how long ago."""

    def __init__(self, store: Any, rank: int, members: Sequence[dict[str, Any]]) -> None:
        super().__init__(name="vigil", daemon=True)
        self.store, self.rank, self.members = store, rank, members
        self.loss: Loss | None = None
        self.over = threading.Event()
        self.guard = threading.Lock()  # of the store, which one thread uses at a time
        watched = [m["rank"] for m in members if m["rank"] != rank] if rank == LEADER else [LEADER]
        self.seen = {other: ("", time.monotonic()) for other in watched}
        self.looked = time.monotonic()
        self._beat(0)

    def run(self) -> None:
        threading.Thread(target=self._look_again_and_again, name="vigil-store", daemon=True).start()
        while not self.over.wait(BEAT / 2) and self.loss is None:
            if time.monotonic() - self.looked > PATIENCE:
                silent = "the machine of the first rank, or of the launcher, has not answered for"
                self.loss = Loss(f"{silent} {PATIENCE:.0f} s")
        if self.loss is not None and not self.over.wait(GRACE):
            self._end_the_process(self.loss)

    def _look_again_and_again(self) -> None:
        beats = 0
        while not self.over.wait(BEAT) and self.loss is None:
            beats += 1
            try:
                with self._store():
                    found = self._look(beats)
                self.looked = time.monotonic()
            except Exception:  # whatever the store raises when its other end is gone
                found = self.gone() or Loss("the first rank, or the launcher, is gone: nothing connects the ranks")
            self.loss = self.loss or found

    @contextmanager
    def _store(self) -> Iterator[Any]:
        """The store for one thread at a time; one that does not answer is as good as gone."""
        if not self.guard.acquire(timeout=EXPLANATION):
            raise TimeoutError("the store does not answer")
        try:
            yield self.store
        finally:
            self.guard.release()

    def _beat(self, count: int) -> None:
        self.store.set(f"alive/{self.rank}", str(count))

    def _look(self, beats: int) -> Loss | None:
        self._beat(beats)
        if (told := self._told()) is not None:
            return told
        now = time.monotonic()
        for other, (sign, since) in self.seen.items():
            key = f"alive/{other}"
            found = self.store.get(key).decode() if self.store.check([key]) else ""
            if found != sign:
                self.seen[other] = (found, now)
            elif now - since > PATIENCE:
                why = f"has given no sign of life for {PATIENCE:.0f} s"
                return Loss.of(self.members[other], len(self.members), why)
        return None

    def _told(self) -> Loss | None:
        """What a rank said before it ended."""
        if not self.store.check([FAILED]):
            return None
        told = json.loads(self.store.get(FAILED))
        if told["rank"] == self.rank:
            return None
        member = self.members[told["rank"]]
        where = f"rank {told['rank']} of {len(self.members)} on {member['host']}: "
        return Loss(where + told["message"], told["hint"], told["code"])

    def reason(self) -> Loss | None:
        """Why a connection broke: what the other rank told, or which process on this machine is gone."""
        deadline = time.monotonic() + EXPLANATION
        while time.monotonic() < deadline:
            try:
                with self._store():
                    if (told := self._told()) is not None:
                        return told
            except Exception:  # the store is gone too
                deadline = min(deadline, time.monotonic() + EXPLANATION / 4)
            if self.gone() is not None:  # what it had to tell, it has told
                deadline = min(deadline, time.monotonic() + EXPLANATION / 8)
            time.sleep(EXPLANATION / 40)
        return self.gone()

    def gone(self) -> Loss | None:
        """A rank on this machine whose process has ended, other than one that was told to."""
        gone = [m for m in self.members if self._is_gone(m) and not self._has(f"farewell/{m['rank']}")]
        return Loss.of(gone[0], len(self.members)) if gone else None

    def _is_gone(self, member: dict[str, Any]) -> bool:
        """Whether the process of a member on this machine has ended."""
        return member["host"] == self.members[self.rank]["host"] and process_is_gone(member["process"])

    def _has(self, key: str) -> bool:
        try:
            with self._store() as store:
                return store.check([key])
        except Exception:  # gone
            return False

    def close(self) -> None:
        """This rank ends because it was told to, which is no loss."""
        self.over.set()
        try:
            with self._store() as store:
                store.set(f"farewell/{self.rank}", "")
        except Exception:  # nobody is left to hear it
            return

    def tell(self, error: SublaplaceError, say: Callable[[], None]) -> None:
        """Tell the others of an error of this rank, and `say` it where it is this rank's to print.

        The leader prints. Where it has ended without a word, the first of the others to notice does.
        """
        told = {"rank": self.rank, "message": error.message, "hint": error.hint, "code": error.exit_code}
        self.over.set()
        try:
            with self._store() as store:
                store.compare_set(FAILED, "", json.dumps(told))
        except Exception:  # told below, by whoever is left
            pass
        if self.rank != LEADER and self._printed_by_another():
            return
        if self.may_print():
            say()
        if self.rank == LEADER:
            self._wait_for_the_others()

    def may_print(self) -> bool:
        """Whether nobody has printed yet. Without a store to ask in, the first rank that is left on a machine may."""
        try:
            with self._store() as store:
                return store.compare_set(PRINTED, "", str(self.rank)).decode() == str(self.rank)
        except Exception:  # the store is gone
            return self._is_first_left()

    def _is_first_left(self) -> bool:
        """Whether the ranks before this one on its machine are gone. A process that is being killed closes its
        connections a moment before it counts as ended; a leader that prints stays for longer than that."""
        host, deadline = self.members[self.rank]["host"], time.monotonic() + EXPLANATION / 2
        before = [m["process"] for m in self.members[: self.rank] if m["host"] == host]
        while not (left := all(process_is_gone(q, or_stopped=True) for q in before)) and time.monotonic() < deadline:
            time.sleep(EXPLANATION / 40)
        return left

    def _printed_by_another(self) -> bool:
        """Whether the leader has printed, after as long as it may need to notice."""
        deadline = time.monotonic() + 2 * BEAT + 2 * GRACE
        while time.monotonic() < deadline:
            try:
                with self._store() as store:
                    if store.check([PRINTED]):
                        store.set(f"heard/{self.rank}", "")
                        return True
            except Exception:  # `may_print` knows what to do then
                return False
            if self._is_gone(self.members[LEADER]):
                return False
            time.sleep(EXPLANATION / 40)
        return False

    def _wait_for_the_others(self) -> None:
        """The store may live in this process: the others must have read in it before it ends."""
        deadline = time.monotonic() + EXPLANATION
        others = [m for m in self.members if m["rank"] != self.rank]
        while time.monotonic() < deadline:
            if all(self._has(f"heard/{m['rank']}") or self._is_gone(m) for m in others):
                return
            time.sleep(EXPLANATION / 40)

    def _end_the_process(self, loss: Loss) -> None:
        """The work does not notice: it is in the midst of something long."""

        def say() -> None:
            lines = [f"error: {loss.message}", *([f"  {loss.hint}"] if loss.hint else [])]
            (sys.__stderr__ or sys.stderr).write("\n".join(lines) + "\n")
            (sys.__stderr__ or sys.stderr).flush()

        self.tell(loss.error(), say)
        os._exit(loss.code)

    def stop(self) -> None:
        """The work is done."""
        self.over.set()
        self.join(GRACE)


def process_is_gone(process: int, or_stopped: bool = False) -> bool:
    """Whether a process of this machine has ended; a zombie has."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX" + "Tt" * or_stopped
    except OSError:
        return False
