"""Several workers hold the rows of a Jacobian: each holds some of them, and one worker leads.

The leader runs the program; the others wait for its calls. A call of a function marked `@collective` runs on every
worker, on the rows that it holds; the leader gets the complete result. No worker decides anything from its own numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Protocol, TypeVar

from torch import Tensor

LEADER = 0
Returned = TypeVar("Returned")
FindJacobian = Callable[[str, Sequence[int] | None], Any]  # (name, some of its rows) → a Jacobian


class WorkerGroup(Protocol):
    """Communication between workers; all of them make these calls at the same time and in the same order."""

    @property
    def size(self) -> int: ...
    @property
    def rank(self) -> int: ...

    busy: bool  # inside a collective call: calls nested in it run directly

    def call_on_all(self, function: str, arguments: Sequence[Any]) -> None:
        """On the leader: make the others run this collective function with these arguments. No effect elsewhere."""

    def sum_to_leader(self, values: Tensor) -> Tensor:
        """The sum over all workers, in place; valid on the leader only."""

    def broadcast(self, values: Tensor, owner: int) -> None:
        """Copy the values of one worker to all others, in place."""

    def send_to_leader(self, values: Tensor, owner: int) -> None:
        """Copy the values of one worker to the leader, in place."""

    def exchange(self, own: Any) -> list[Any]:
        """The values of all workers by rank; each must be JSON-serializable."""

    @property
    def workers_on_device(self) -> int:
        """Workers that use the memory of this worker's device, this one included."""

    def calls(self, find: FindJacobian) -> Iterator[tuple[str, list[Any]]]:
        """On all but the leader: receive its collective calls until it ends them."""

    def end_calls(self) -> None:
        """On the leader: end the current sequence of collective calls."""


class SingleWorker(WorkerGroup):
    """One worker that holds all rows: it has nothing to send."""

    size, rank, busy, workers_on_device = 1, LEADER, True, 1

    def call_on_all(self, function: str, arguments: Sequence[Any]) -> None: ...
    def broadcast(self, values: Tensor, owner: int) -> None: ...
    def send_to_leader(self, values: Tensor, owner: int) -> None: ...
    def end_calls(self) -> None: ...

    def sum_to_leader(self, values: Tensor) -> Tensor:
        return values

    def exchange(self, own: Any) -> list[Any]:
        return [own]

    def calls(self, find: FindJacobian) -> Iterator[tuple[str, list[Any]]]:
        yield from ()


SINGLE_WORKER = SingleWorker()
COLLECTIVES: dict[str, Callable[..., Any]] = {}  # the functions that a collective call can run, by name


def collective(function: Callable[..., Returned]) -> Callable[..., Returned]:
    """A function of Jacobians, tensors, numbers and None that runs on all workers; keywords stay on the leader."""
    COLLECTIVES[function.__name__] = function

    @wraps(function)
    def run(*arguments: Any, **leader_only: Any) -> Returned:
        workers: WorkerGroup = next((value.workers for value in arguments if hasattr(value, "workers")), SINGLE_WORKER)
        if workers.busy:
            return function(*arguments, **leader_only)
        workers.call_on_all(function.__name__, arguments)
        workers.busy = True
        try:
            return function(*arguments, **leader_only)
        finally:
            workers.busy = False

    return run


def owner_of_strip(strip: int, size: int) -> int:
    """The worker that computes a strip of a triangle: in alternating order, so that all get similar work."""
    turn = strip % (2 * size)
    return turn if turn < size else 2 * size - 1 - turn
