"""Many processes: the only user of torch.distributed. One rank leads, the others answer its questions.

Nothing heavy is imported up here.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .. import signals
from ..errors import RunError, SublaplaceError, UserError
from .heartbeat import KEPT, Heartbeat, Loss
from .ranks import LEADER, Place

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..core.workers import FindJacobian, WorkerGroup

JOINING = timedelta(seconds=120)  # for all ranks to start
WORKING = timedelta(days=30)  # no collective is too slow: whether a rank is still there is asked otherwise
LOOK = 0.2  # seconds of waiting between looks at signals and at the other ranks
POLL = 100e-6  # seconds between looks at a collective of a device
GOODBYE = "goodbye"


class ProcessGroup:
    """This process in a team of several (`core.workers.WorkerGroup`)."""

    def __init__(self, here: Place, device: torch.device) -> None:
        import torch.distributed as dist

        self.rank, self.size, self.device = here.rank, here.size, device
        self.busy = here.rank != LEADER  # the others are always in the midst of a question
        self._dist = dist
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        self.vigil: Heartbeat | None = None
        self._waiter = ThreadPoolExecutor(1, "waiter")
        self._launcher = os.getppid()

        def join() -> None:
            self.store, _, _ = next(iter(dist.rendezvous("env://", here.rank, here.size, timeout=JOINING)))
            dist.init_process_group(
                backend,
                store=dist.PrefixStore("work", self.store),
                rank=here.rank,
                world_size=here.size,
                timeout=WORKING,
            )

        try:
            self._until_done(self._waiter.submit(join))
        except (RuntimeError, ValueError) as error:
            signals.check()
            raise RunError(
                f"rank {here.rank} of {here.size} could not join the others within {JOINING.seconds} s: {error}",
                hint="did all ranks start, and do they reach MASTER_ADDR:MASTER_PORT?",
            ) from error
        own = {"rank": self.rank, "host": socket.gethostname(), "process": os.getpid(), "device": str(device)}
        self.members = self.exchange(own)
        if device.type == "cuda" and self.workers_on_device > 1:
            raise UserError(
                f"{self.workers_on_device} ranks share {device} on {socket.gethostname()}; nccl takes one rank a GPU",
                hint="start as many ranks on a machine as it has GPUs, or use --device cpu",
            )
        self.vigil = Heartbeat(self.store.clone(), self.rank, self.members)
        self.vigil.start()

    # --- what core.workers.WorkerGroup asks for ---------------------------------------------------------------------

    def call_on_all(self, question: str, arguments: Sequence[Any]) -> None:
        if self.rank != LEADER:
            return
        tensors: list[Tensor] = []
        words = [_described(value, tensors) for value in arguments]
        self._say({"question": question, "arguments": words})
        for tensor in tensors:
            self.broadcast(tensor.contiguous(), LEADER)

    def sum_to_leader(self, values: Tensor) -> Tensor:
        self._wait(self._dist.reduce, values, LEADER)
        return values

    def broadcast(self, values: Tensor, holder: int) -> None:
        self._wait(self._dist.broadcast, values, holder)

    def send_to_leader(self, values: Tensor, holder: int) -> None:
        if holder == LEADER:
            return
        if self.rank == holder:
            self._wait(self._dist.isend, values, LEADER)
        elif self.rank == LEADER:
            self._wait(self._dist.irecv, values, holder)

    def exchange(self, own: Any) -> list[Any]:
        """What every member says, by rank."""
        return [self._say(own, speaker) for speaker in range(self.size)]

    @property
    def workers_on_device(self) -> int:
        own = self.members[self.rank]
        return sum((m["host"], m["device"]) == (own["host"], own["device"]) for m in self.members)

    # --- followers ----------------------------------------------------------------------------------------

    def calls(self, find: FindJacobian) -> Iterator[tuple[str, list[Any]]]:
        """What the leader asks, until it says goodbye; Jacobians are looked up by name."""
        while True:
            asked = self._say(None)
            if asked["question"] == GOODBYE:
                return
            yield asked["question"], [self._value(word, find) for word in asked["arguments"]]

    def _value(self, word: dict[str, Any], find: FindJacobian) -> Any:
        import torch

        if "jacobian" in word:
            return find(word["jacobian"], word["rows"])
        if "tensor" not in word:
            return word["value"]
        like = {"dtype": getattr(torch, word["tensor"]), "device": self.device if word["there"] else "cpu"}
        tensor = torch.empty(word["shape"], **like)
        self.broadcast(tensor, LEADER)
        return tensor

    def end_calls(self) -> None:
        """The leader has no more questions for now."""
        self.call_on_all(GOODBYE, [])

    # --- words and waiting --------------------------------------------------------------------------------

    def _say(self, words: Any, speaker: int = LEADER) -> Any:
        """What one rank says, on all of them."""
        import torch

        content = json.dumps(words).encode() if self.rank == speaker else b""
        length = torch.tensor([len(content)])
        self.broadcast(length, speaker)
        letters = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0)
        if self.rank != speaker:
            letters = torch.empty(int(length), dtype=torch.uint8)
        self.broadcast(letters, speaker)
        return json.loads(bytes(letters.tolist()))

    def _wait(self, collective: Callable[..., Any], values: Tensor, peer: int) -> None:
        """Until it is done, while signals and the loss of a rank are noticed."""
        more = {} if collective in (self._dist.isend, self._dist.irecv) else {"async_op": True}
        try:
            work = collective(values, peer, **more)
            if values.device.type == "cpu":  # of gloo only a wait tells whether a message has arrived
                self._until_done(self._waiter.submit(work.wait))
            else:  # of nccl, this thread must wait
                while not work.is_completed():
                    time.sleep(POLL)
                    self._look_around()
                work.wait()
        except RuntimeError as error:
            signals.check()
            raise self._lost(error) from error

    def _until_done(self, work: Future[Any]) -> None:
        while not wait([work], LOOK).done:
            self._look_around()
        work.result()

    def _look_around(self) -> None:
        signals.check()
        if self.vigil is None and os.getppid() != self._launcher:
            raise RunError("the launcher is gone", hint=KEPT)
        if self.vigil is not None and self.vigil.loss is not None:
            raise self.vigil.loss.error()

    def _lost(self, error: RuntimeError) -> SublaplaceError:
        """A connection broke: why, as far as anybody said."""
        loss = None if self.vigil is None else self.vigil.reason()
        return (loss or Loss(f"the connection to another rank broke: {error}")).error()

    # --- the end ------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """After the last question."""
        if self.vigil is not None:
            self.vigil.stop()
        self._dist.destroy_process_group()


_team: list[ProcessGroup] = []  # of this process, while it is in one
_among_several: list[Place] = []  # where this process stands, once it looks for the others


@contextmanager
def joined(here: Place, device: str) -> Iterator[WorkerGroup]:
    """The team of all ranks, each with a device of its own where there are several; alone, a team of one."""
    from .. import device as devices
    from ..core.workers import SINGLE_WORKER

    if here.size == 1:
        yield SINGLE_WORKER
        return
    _among_several.append(here)
    workers = ProcessGroup(here, devices.of_rank(device, here.local_rank))
    _team.append(workers)
    yield workers
    workers.leave()
    _team.clear()


def tell(error: SublaplaceError, say: Callable[[SublaplaceError], None]) -> None:
    """Tell the user and the other ranks of an error; of all ranks one prints it."""
    if _team:
        signals.ignore()  # a launcher sends one as soon as the first rank has ended
        vigil = _team[0].vigil
        assert vigil is not None, "a team that has begun has one"
        vigil.tell(error, lambda: _aloud(lambda: say(error)))
    else:  # not joined yet: `__main__` has silenced all but one rank a machine
        say(error)


def _aloud(say: Callable[[], None]) -> None:
    sys.stderr = sys.__stderr__
    say()


def end_of(code: int) -> tuple[str, int]:
    """What to say and to end with after a signal: a launcher also sends one because another rank is gone."""
    vigil = _team[0].vigil if _team else None
    if vigil is None:
        return f"interrupted; {KEPT}\n", code
    loss = vigil.gone() if code == 143 else None
    if loss is None:
        vigil.close()
        return f"interrupted; {KEPT}\n" if _team[0].rank == LEADER else "", code
    if not vigil.may_print():
        return "", loss.code
    sys.stderr = sys.__stderr__
    return f"error: {loss.message}\n  {loss.hint}\n", loss.code


def end_at_once(code: int) -> None:
    """After a failure among several ranks: threads that wait for the others could only delay it."""
    if _among_several:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _described(value: Any, tensors: list[Tensor]) -> dict[str, Any]:
    """An argument of a question in words; tensors go after it."""
    import torch

    if isinstance(value, torch.Tensor):
        tensors.append(value)
        kind = str(value.dtype).removeprefix("torch.")
        return {"tensor": kind, "shape": list(value.shape), "there": value.device.type != "cpu"}
    if hasattr(value, "workers"):
        return {"jacobian": value.name, "rows": None if value.rows is None else list(value.rows)}
    return {"value": value}
