"""Ranks, heartbeat and messages between ranks: lost ranks, reported errors, and which rank prints them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from sublaplace_cli.distributed import heartbeat, process_group
from sublaplace_cli.distributed.heartbeat import Failure, Heartbeat, process_has_ended
from sublaplace_cli.distributed.ranks import RankInfo, current_rank
from sublaplace_cli.errors import RunError, SublaplaceError, UserError

OTHER_HOST = "another-machine"


class Store:
    """The methods of torch's store that a heartbeat uses."""

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
    return [{"rank": rank, "host": OTHER_HOST, "process": 10**9 + rank} for rank in range(size)]


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BEAT_INTERVAL": 0.02, "LOST_AFTER": 0.3, "GRACE_PERIOD": 0.2, "REPORT_WAIT": 0.2}.items():
        monkeypatch.setattr(heartbeat, name, seconds)


def until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.01)


def test_a_rank_without_a_heartbeat_is_lost_and_one_with_a_heartbeat_is_not() -> None:
    store = Store()
    leader, other = Heartbeat(store, 0, members()), Heartbeat(store, 1, members())
    ended: list[Failure] = []
    for one in (leader, other):
        one._abort_process = ended.append  # type: ignore[method-assign]
        one.start()
    time.sleep(1.0)  # several times LOST_AFTER
    assert leader.failure is None
    assert other.failure is None
    other.stop()
    until(lambda: leader.failure is not None)
    assert leader.failure is not None
    assert "rank 1 of 2 (process 1000000001 on another-machine) has sent no heartbeat for" in leader.failure.message
    assert leader.failure.exit_code == 3
    until(lambda: ended)  # the work did not notice in time: the process is ended
    assert ended == [leader.failure]


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (10**9, f"rank 0 of 2 (process {10**9} on {OTHER_HOST}) ended unexpectedly (killed, or out of memory)"),
        (os.getpid(), "the connection to rank 0 or to the launcher is lost"),
    ],
    ids=["ended", "running"],
)
def test_a_lost_store_is_a_failure(process: int, message: str) -> None:
    watching = Heartbeat(Store(), 1, [{**member, "process": process} for member in members()])
    watching._abort_process = lambda failure: None  # type: ignore[method-assign]
    watching.store = None
    watching.start()
    until(lambda: watching.failure is not None)
    assert watching.failure is not None
    assert watching.failure.message == message


def prints(one: Heartbeat, error: SublaplaceError) -> bool:
    """Whether this rank prints the error."""
    printed: list[str] = []
    one.report_failure(error, lambda: printed.append(error.message))
    return bool(printed)


def test_an_error_is_reported_to_the_others_and_printed_once() -> None:
    store = Store()
    leader, second, third = (Heartbeat(store, rank, members(3)) for rank in range(3))
    store.set("confirmed/1", "")
    store.set("confirmed/2", "")
    assert prints(leader, UserError("wrong", hint="do right"))
    assert not prints(second, RunError("lost it"))
    assert not prints(third, RunError("lost it"))
    failure = second.find_cause()
    assert failure is not None
    assert failure.message == f"rank 0 of 3 on {OTHER_HOST}: wrong"
    assert (failure.hint, failure.exit_code) == ("do right", 2)


def test_without_a_leader_the_first_of_the_others_prints() -> None:
    store = Store()
    second, third = (Heartbeat(store, rank, members(3)) for rank in (1, 2))
    assert [prints(second, RunError("lost")), prints(third, RunError("lost"))] == [True, False]


def test_a_late_leader_does_not_print_again() -> None:
    store = Store()
    leader, second = (Heartbeat(store, rank, members()) for rank in range(2))
    assert prints(second, RunError("of this rank only"))
    assert not prints(leader, RunError("rank 1 of 2: of this rank only"))


def test_a_rank_that_closed_is_not_lost() -> None:
    own = [{"rank": rank, "host": "here", "process": 10**9 + rank} for rank in range(2)]
    store = Store()
    leader, second = (Heartbeat(store, rank, own) for rank in range(2))
    assert leader.ended_rank() is not None
    second.close()
    leader.members = [{**own[0], "process": os.getpid()}, own[1]]
    assert leader.ended_rank() is None


def test_a_store_that_does_not_answer_is_noticed() -> None:
    """Its machine is reachable but silent: a request to the store never returns."""
    watching = Heartbeat(Store(), 1, members())
    ended: list[Failure] = []
    watching._abort_process = ended.append  # type: ignore[method-assign]
    watching._check_others = lambda beats: time.sleep(5)  # type: ignore[method-assign]
    watching.start()
    until(lambda: ended)
    assert "has not answered for" in ended[0].message
    start = time.monotonic()
    prints(watching, RunError("lost"))
    assert time.monotonic() - start < 4  # reporting does not hang either


def test_a_process_has_ended_even_before_its_parent_waits_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    until(lambda: process_has_ended(child.pid))  # a zombie
    child.wait()
    assert process_has_ended(child.pid)
    assert not process_has_ended(os.getpid())


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({"WORLD_SIZE": "2"}, "RANK is None"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR is not set"),
    ],
)
def test_a_launcher_must_set_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert current_rank() == RankInfo()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        current_rank()


def test_arguments_of_a_call_are_json() -> None:
    """No pickle between ranks: only JSON and tensor data."""
    import torch

    tensors: list = []
    encoded = [process_group._encode(value, tensors) for value in (3, None, [1, 2], "train", torch.ones(2, 3))]
    assert json.loads(json.dumps(encoded)) == [
        {"value": 3},
        {"value": None},
        {"value": [1, 2]},
        {"value": "train"},
        {"tensor": "float32", "shape": [2, 3], "on_device": False},
    ]
    assert len(tensors) == 1
