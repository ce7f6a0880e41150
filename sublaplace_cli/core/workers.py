"""A team shares the rows of a Jacobian: each member holds some, one of them leads.

The leader runs the program; the others wait for its questions and answer them. A question is one of the functions
marked `@collective`: every member runs it with the same arguments on the rows that it holds, and the leader gets the
whole answer. Nothing that a member decides depends on its own numbers, so that all of them take the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Protocol, TypeVar

from torch import Tensor

LEADER = 0
Answer = TypeVar("Answer")
Find = Callable[[str, Sequence[int] | None], Any]  # (name, some of its rows) → a Jacobian


class WorkerGroup(Protocol):
    """What the members do together; all of them call each of these at the same time and in the same order."""

    @property
    def size(self) -> int: ...
    @property
    def rank(self) -> int: ...

    busy: bool  # with a question: what is asked inside of it needs no question of its own

    def call_on_all(self, question: str, arguments: Sequence[Any]) -> None:
        """On the leader: let the others run this question with these arguments. Nothing on the others."""
        ...

    def sum_to_leader(self, values: Tensor) -> Tensor:
        """The sum over all members, in place; right on the leader only."""
        ...

    def broadcast(self, values: Tensor, holder: int) -> None:
        """The values of one member to all the others, in place."""
        ...

    def send_to_leader(self, values: Tensor, holder: int) -> None:
        """The values of one member to the leader, in place."""
        ...

    def exchange(self, own: Any) -> list[Any]:
        """What every member says (anything that JSON can say), by rank."""
        ...

    @property
    def workers_on_device(self) -> int:
        """Members that share the memory of this one's device, itself among them."""
        ...

    def calls(self, find: Find) -> Iterator[tuple[str, list[Any]]]:
        """On all but the leader: what it asks, until it says goodbye."""
        ...

    def end_calls(self) -> None:
        """On the leader: no more questions for now."""
        ...


class SingleWorker:
    """A team of one."""

    size, rank, busy, workers_on_device = 1, LEADER, True, 1

    def call_on_all(self, question: str, arguments: Sequence[Any]) -> None:
        pass

    def sum_to_leader(self, values: Tensor) -> Tensor:
        return values

    def broadcast(self, values: Tensor, holder: int) -> None:
        pass

    def send_to_leader(self, values: Tensor, holder: int) -> None:
        pass

    def exchange(self, own: Any) -> list[Any]:
        return [own]

    def calls(self, find: Find) -> Iterator[tuple[str, list[Any]]]:
        yield from ()

    def end_calls(self) -> None:
        pass


SINGLE_WORKER = SingleWorker()
COLLECTIVES: dict[str, Callable[..., Any]] = {}  # by name: what a member runs


def collective(question: Callable[..., Answer]) -> Callable[..., Answer]:
    """A function over Jacobians that, where a team shares their rows, all its members run at the same time.

    Its arguments are Jacobians, tensors, numbers and None; what only the leader needs is a keyword argument.
    """
    COLLECTIVES[question.__name__] = question

    @wraps(question)
    def run(*arguments: Any, **of_the_leader: Any) -> Answer:
        workers: WorkerGroup = next((q.workers for q in arguments if hasattr(q, "workers")), SINGLE_WORKER)
        if workers.busy:
            return question(*arguments, **of_the_leader)
        workers.call_on_all(question.__name__, arguments)
        workers.busy = True
        try:
            return question(*arguments, **of_the_leader)
        finally:
            workers.busy = False

    return run


def owner_of_strip(strip: int, size: int) -> int:
    """The member that a strip of a triangle goes to: back and forth, so that long and short ones are shared evenly."""
    place = strip % (2 * size)
    return place if place < size else 2 * size - 1 - place
