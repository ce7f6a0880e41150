"""Watching over ranks: who gives no sign of life, who told of an error, and who prints it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from sublaplace_cli.distributed import heartbeat as vigil
from sublaplace_cli.distributed import process_group as parallel
from sublaplace_cli.distributed import ranks
from sublaplace_cli.distributed.heartbeat import Heartbeat, Loss, process_is_gone
from sublaplace_cli.errors import RunError, SublaplaceError, UserError

ELSEWHERE = "another-machine"


class Store:
    """What a vigil needs of torch's store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        if key not in self.values:
            self.set(key, value)
        return self.values[key]


def members(size: int = 2) -> list[dict]:
    return [{"rank": rank, "host": ELSEWHERE, "process": 10**9 + rank} for rank in range(size)]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BEAT": 0.02, "PATIENCE": 0.3, "GRACE": 0.2, "EXPLANATION": 0.2}.items():
        monkeypatch.setattr(vigil, name, seconds)


def until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_a_rank_without_a_sign_of_life_is_lost_and_one_with_signs_is_not() -> None:
    store = Store()
    leader, other = Heartbeat(store, 0, members()), Heartbeat(store, 1, members())
    ended: list[Loss] = []
    for one in (leader, other):
        one._end_the_process = ended.append  # type: ignore[method-assign]
        one.start()
    time.sleep(1.0)  # several times the patience
    assert leader.loss is None
    assert other.loss is None
    other.stop()
    until(lambda: leader.loss is not None)
    assert leader.loss is not None
    assert "rank 1 of 2 (process 1000000001 on another-machine) has given no sign of life for" in leader.loss.message
    assert leader.loss.code == 3
    until(lambda: ended)  # nobody noticed in time: the process is ended
    assert ended == [leader.loss]


def test_a_store_that_is_gone_is_a_loss() -> None:
    watching = Heartbeat(Store(), 1, members())
    watching._end_the_process = lambda loss: None  # type: ignore[method-assign]
    watching.store = None
    watching.start()
    until(lambda: watching.loss is not None)
    assert watching.loss is not None
    assert "is gone" in watching.loss.message


def tells(one: Heartbeat, error: SublaplaceError) -> bool:
    """Whether this one prints it."""
    said: list[str] = []
    one.tell(error, lambda: said.append(error.message))
    return bool(said)


def test_an_error_is_told_to_the_others_and_printed_once() -> None:
    store = Store()
    leader, second, third = (Heartbeat(store, rank, members(3)) for rank in range(3))
    store.set("heard/1", "")
    store.set("heard/2", "")
    assert tells(leader, UserError("wrong", hint="do right"))
    assert not tells(second, RunError("lost it"))
    assert not tells(third, RunError("lost it"))
    loss = second.reason()
    assert loss is not None
    assert loss.message == f"rank 0 of 3 on {ELSEWHERE}: wrong"
    assert (loss.hint, loss.code) == ("do right", 2)
    assert loss.error().exit_code == 2


def test_without_a_leader_the_first_of_the_others_prints() -> None:
    store = Store()
    second, third = (Heartbeat(store, rank, members(3)) for rank in (1, 2))
    assert [tells(second, RunError("lost")), tells(third, RunError("lost"))] == [True, False]


def test_a_leader_that_is_late_does_not_print_again() -> None:
    store = Store()
    leader, second = (Heartbeat(store, rank, members()) for rank in range(2))
    assert tells(second, RunError("of this rank only"))
    assert not tells(leader, RunError("rank 1 of 2: of this rank only"))


def test_a_rank_that_was_told_to_end_is_not_lost() -> None:
    own = [{"rank": rank, "host": "here", "process": 10**9 + rank} for rank in range(2)]
    store = Store()
    leader, second = (Heartbeat(store, rank, own) for rank in range(2))
    assert leader.gone() is not None
    second.close()
    leader.members = [{**own[0], "process": os.getpid()}, own[1]]
    assert leader.gone() is None


def test_a_store_that_does_not_answer_is_noticed() -> None:
    """Its machine is there, but silent: a look at it never ends."""
    watching = Heartbeat(Store(), 1, members())
    ended: list[Loss] = []
    watching._end_the_process = ended.append  # type: ignore[method-assign]
    watching._look = lambda beats: time.sleep(5)  # type: ignore[method-assign]
    watching.start()
    until(lambda: ended)
    assert "has not answered for" in ended[0].message
    start = time.monotonic()
    tells(watching, RunError("lost"))
    assert time.monotonic() - start < 4  # nor does telling hang


def test_a_process_that_ended_is_gone_even_if_nobody_looked() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    until(lambda: process_is_gone(child.pid))  # a zombie
    child.wait()
    assert process_is_gone(child.pid)
    assert not process_is_gone(os.getpid())


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({"WORLD_SIZE": "2"}, "RANK is None"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR is not set"),
    ],
)
def test_what_a_launcher_must_say(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], words: str) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert ranks.place() == ranks.Place()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=words):
        ranks.place()


def test_arguments_of_a_question_are_plain_words() -> None:
    """No pickle between ranks: what one says is JSON and numbers."""
    import torch

    tensors: list = []
    words = [parallel._described(value, tensors) for value in (3, None, [1, 2], "train", torch.ones(2, 3))]
    assert json.loads(json.dumps(words)) == [
        {"value": 3},
        {"value": None},
        {"value": [1, 2]},
        {"value": "train"},
        {"tensor": "float32", "shape": [2, 3], "there": False},
    ]
    assert len(tensors) == 1
