"""Several processes as one worker group: the only user of torch.distributed."""

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
from typing import TYPE_CHECKING, Any, NoReturn

from .. import signals
from ..errors import RunError, SublaplaceError, UserError
from .heartbeat import CONTINUE_HINT, Failure, Heartbeat
from .ranks import LEADER_RANK, RankInfo

if TYPE_CHECKING:  # `--help` and usage errors must not wait for torch
    import torch
    from torch import Tensor

    from ..core.workers import FindJacobian, WorkerGroup

JOIN_TIMEOUT = timedelta(seconds=120)  # for all ranks to start
RENDEZVOUS_MARGIN = timedelta(seconds=120)  # torch logs its own time-outs: on a busy machine, ours must come first too
COLLECTIVE_TIMEOUT = timedelta(days=30)  # no limit: the heartbeat notices lost ranks
CHECK_INTERVAL = 0.2  # seconds between two checks for signals and failures while waiting
POLL_INTERVAL = 100e-6  # seconds between two polls of a collective on a device
END_OF_CALLS = "end of calls"


class ProcessGroup:
    """This process as one worker of several (`core.workers.WorkerGroup`)."""

    store: Any = None  # of this rank, once it is connected

    def __init__(self, info: RankInfo, device: torch.device) -> None:
        import torch.distributed as dist

        self.rank, self.size, self.device = info.rank, info.size, device
        self.busy = not info.is_leader  # a follower always runs inside a call
        self.heartbeat: Heartbeat | None = None
        self._dist = dist
        self._waiter = ThreadPoolExecutor(1, "waiter")
        self._launcher = os.getppid()
        self._join_deadline = time.monotonic() + JOIN_TIMEOUT.total_seconds()
        try:
            self._until_done(self._waiter.submit(self._join))
        except (RuntimeError, ValueError) as error:
            signals.check()
            raise self._not_joined(f": {_first_line(error)}") from error
        host = socket.gethostname()
        self.members = self.exchange({"rank": self.rank, "host": host, "process": os.getpid(), "device": str(device)})
        if device.type == "cuda" and self.workers_on_device > 1:
            hint = "start at most one rank per GPU on each machine, or use --device cpu"
            found = f"{self.workers_on_device} ranks share {device} on {host}"
            raise UserError(f"{found}; nccl needs one GPU per rank", hint=hint)
        self.heartbeat = Heartbeat(self.store.clone(), self.rank, self.members)
        self.heartbeat.start()

    def _join(self) -> None:
        dist, rank, size = self._dist, self.rank, self.size
        # Its own limit is kept only roughly, some steps have none: `_check` ends the wait, so this one comes later.
        self.store, _, _ = next(iter(dist.rendezvous("env://", rank, size, timeout=JOIN_TIMEOUT + RENDEZVOUS_MARGIN)))
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        store = dist.PrefixStore("work", self.store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)

    def _not_joined(self, problem: str) -> RunError:
        if self.rank == LEADER_RANK + 1 and self.store is None:
            sys.stderr = sys.__stderr__ or sys.stderr  # the leader, which prints for this rank too, has not started
        hint = (
            f"check that all ranks have started and can reach {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        )
        return RunError(f"rank {self.rank} of {self.size} could not join the others{problem}", hint=hint)

    def call_on_all(self, function: str, arguments: Sequence[Any]) -> None:
        if self.rank != LEADER_RANK:
            return
        tensors: list[Tensor] = []
        encoded = [_encode(value, tensors) for value in arguments]
        self._broadcast_json({"function": function, "arguments": encoded})
        for tensor in tensors:
            self.broadcast(tensor.contiguous(), LEADER_RANK)

    def sum_to_leader(self, values: Tensor) -> Tensor:
        self._wait(self._dist.reduce, values, LEADER_RANK)
        return values

    def broadcast(self, values: Tensor, owner: int) -> None:
        self._wait(self._dist.broadcast, values, owner)

    def send_to_leader(self, values: Tensor, owner: int) -> None:
        if owner == LEADER_RANK:
            return
        if self.rank == owner:
            self._wait(self._dist.isend, values, LEADER_RANK)
        elif self.rank == LEADER_RANK:
            self._wait(self._dist.irecv, values, owner)

    def exchange(self, own: Any) -> list[Any]:
        return [self._broadcast_json(own, sender) for sender in range(self.size)]

    @property
    def workers_on_device(self) -> int:
        own = self.members[self.rank]
        return sum((m["host"], m["device"]) == (own["host"], own["device"]) for m in self.members)

    def calls(self, find: FindJacobian) -> Iterator[tuple[str, list[Any]]]:
        while (call := self._broadcast_json(None))["function"] != END_OF_CALLS:
            yield call["function"], [self._decode(value, find) for value in call["arguments"]]

    def end_calls(self) -> None:
        self.call_on_all(END_OF_CALLS, [])

    def _decode(self, encoded: dict[str, Any], find: FindJacobian) -> Any:
        import torch

        if "jacobian" in encoded:
            return find(encoded["jacobian"], encoded["rows"])
        if "tensor" not in encoded:
            return encoded["value"]
        device = self.device if encoded["on_device"] else "cpu"
        tensor = torch.empty(encoded["shape"], dtype=getattr(torch, encoded["tensor"]), device=device)
        self.broadcast(tensor, LEADER_RANK)
        return tensor

    def _broadcast_json(self, value: Any, sender: int = LEADER_RANK) -> Any:
        """The sender's value, on all ranks."""
        import torch

        content = json.dumps(value).encode() if self.rank == sender else b""
        length = torch.tensor([len(content)])
        self.broadcast(length, sender)
        buffer = torch.frombuffer(bytearray(content or int(length)), dtype=torch.uint8)
        self.broadcast(buffer, sender)
        return json.loads(bytes(buffer.tolist()))

    def _wait(self, collective: Callable[..., Any], values: Tensor, peer: int) -> None:
        """Run a collective until it is done, checking for signals and failures meanwhile."""
        options = {} if collective in (self._dist.isend, self._dist.irecv) else {"async_op": True}
        try:
            work = collective(values, peer, **options)
            if values.device.type == "cpu":  # gloo reports an arrived message only to a blocking wait
                self._until_done(self._waiter.submit(work.wait))
            else:  # nccl must be waited for in this thread
                while not work.is_completed():
                    time.sleep(POLL_INTERVAL)
                    self._check()
                work.wait()
        except RuntimeError as error:
            signals.check()
            cause = None if self.heartbeat is None else self.heartbeat.find_cause()
            raise cause or Failure(f"the connection to another rank broke: {_first_line(error)}") from error

    def _until_done(self, work: Future[Any]) -> None:
        while not wait([work], CHECK_INTERVAL).done:
            self._check()
        work.result()

    def _check(self) -> None:
        signals.check()
        if self.heartbeat is not None:
            if self.heartbeat.failure is not None:
                raise self.heartbeat.failure
        elif os.getppid() != self._launcher:
            raise Failure("the launcher has ended")
        elif time.monotonic() > self._join_deadline:
            raise self._not_joined(f" within {JOIN_TIMEOUT.total_seconds():.0f} s")

    def close(self) -> None:
        if self.heartbeat is not None:
            self.heartbeat.stop()
        self._dist.destroy_process_group()


_started = False  # this process has begun to join a group
_group: ProcessGroup | None = None  # the group of this process, while it is in one


@contextmanager
def worker_group(info: RankInfo, device: str) -> Iterator[WorkerGroup]:
    """The group of all ranks, with one CUDA device per rank if there are several; one rank is a single worker."""
    global _started, _group
    from .. import device as devices
    from ..core.workers import SINGLE_WORKER

    if info.size == 1:
        yield SINGLE_WORKER
        return
    _started = True
    _group = ProcessGroup(info, devices.of_rank(device, info.local_rank))
    yield _group
    _group.close()  # not after an error: `report_error` still needs the group
    _group = None


def report_error(error: SublaplaceError, show: Callable[[SublaplaceError], None]) -> None:
    """Report an error to the other ranks and to the user; one of the ranks prints it with `show`."""
    if _group is None:  # not joined yet: `__main__` has silenced all but one rank per machine
        show(error)
        return

    def show_on_stderr() -> None:
        sys.stderr = sys.__stderr__
        show(error)

    signals.ignore()  # a launcher sends one as soon as the first rank has ended
    assert _group.heartbeat is not None, "every joined group has a heartbeat"
    _group.heartbeat.report_failure(error, show_on_stderr)


def exit_after_signal(code: int) -> NoReturn:
    """Exit at once after SIGINT or SIGTERM (`code`); the ranks print one message together."""
    signals.ignore()
    message, heartbeat = f"interrupted: {CONTINUE_HINT}\n", None if _group is None else _group.heartbeat
    if heartbeat is not None:
        # A launcher also sends SIGTERM when another rank has ended.
        failure = heartbeat.ended_rank() if code == 143 else None
        if failure is None:
            heartbeat.close()
            message = message if heartbeat.rank == LEADER_RANK else ""
        else:
            message, code = "", failure.exit_code
            if heartbeat.claim_printing():
                message, sys.stderr = failure.text, sys.__stderr__
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(code)  # threads of a library could delay a normal exit


def exit_if_distributed(code: int) -> None:
    """Exit at once after a failure among several ranks: threads that wait for other ranks could delay a normal exit."""
    if _started:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _first_line(error: Exception) -> str:
    """The message of torch without the C++ frames below it."""
    return str(error).strip().partition("\n")[0]


def _encode(value: Any, tensors: list[Tensor]) -> dict[str, Any]:
    """An argument of a call as JSON; tensors are appended to `tensors` and sent after it."""
    import torch

    if isinstance(value, torch.Tensor):
        tensors.append(value)
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": dtype, "shape": list(value.shape), "on_device": value.device.type != "cpu"}
    if hasattr(value, "workers"):
        return {"jacobian": value.name, "rows": None if value.rows is None else list(value.rows)}
    return {"value": value}
