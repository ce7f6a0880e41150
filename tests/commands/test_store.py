"""The store: what is reused, what is made again, and what is said and timed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from commands.in_process import Notes

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.artifacts.artifact import Artifact
from sublaplace_cli.run.store import Content, Key, Store

KEY = Key("values", "indices-a-k3", {"scores": "0" * 64}, {"method": "a"}, "select")


def read(artifact: Artifact) -> torch.Tensor:
    return artifact.tensor("value")


def write(value: torch.Tensor) -> Content:
    return {"value": value}, {"pool": "all"}


@pytest.fixture
def reopened(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """The store of a run folder, as one command after the other opens it."""
    opened: list[Store] = []

    def reopen(force: bool = False, **identity: int) -> Store:
        for store in opened:
            store.close()
        store = Store(tmp_path / "run", {"weights": "w", **identity}, {"tool": "0"}, Notes())
        store.force = force
        store.open_folder()
        opened.append(store)
        return store

    yield reopen
    for store in opened:
        store.close()


def get(store: Store, key: Key = KEY, value: float = 1.0, read: Callable = read, write: Callable = write):
    """The value, its digest, and how often it was made."""
    made: list[float] = []

    def make() -> torch.Tensor:
        made.append(value)
        return torch.full((3,), value)

    stored = store.get(key, make, read, write)
    return float(stored.value[0]), stored.digest, len(made)


def test_a_stored_value_is_reused_with_its_digest_and_a_note(reopened: Callable[..., Store]) -> None:
    first = reopened()
    value, digest, made = get(first)
    assert (value, made) == (1.0, 1)
    assert first.reporter.said == []
    second = reopened()
    assert get(second, value=2.0) == (1.0, digest, 0)
    assert second.reporter.said == ["reusing indices-a-k3"]
    assert first.artifacts == second.artifacts == {KEY.name: str(first.path / "indices-a-k3.safetensors")}
    assert "select" in first.seconds
    assert second.seconds == {}


def test_metadata_has_inputs_facts_and_the_fingerprint(reopened: Callable[..., Store]) -> None:
    store = reopened()
    get(store)
    meta = store.open(KEY).meta
    assert {name: meta[name] for name in ("tool", "inputs", "method", "pool", "fingerprint")} == {
        "tool": "0",
        "inputs": {"scores": "0" * 64},
        "method": "a",
        "pool": "all",
        "fingerprint": store.fingerprint,
    }


@pytest.mark.parametrize(
    "again",
    [
        lambda reopen: get(reopen(), Key(KEY.kind, KEY.name, {"scores": "1" * 64}, KEY.facts), value=2.0),
        lambda reopen: get(reopen(force=True), value=2.0),
        lambda reopen: get(reopen(), value=2.0, read=lambda _: None),
    ],
    ids=["other inputs", "force", "not usable here"],
)
def test_it_is_made_and_written_again(reopened: Callable[..., Store], again: Callable) -> None:
    _, digest, _ = get(reopened())
    value, other, made = again(reopened)
    assert (value, made) == (2.0, 1)
    assert other != digest
    store = reopened()
    assert "reusing" not in " ".join(store.reporter.said)
    assert float(read(store.open(KEY))[0]) == 2.0


def test_an_artifact_of_another_method_or_run_is_refused(reopened: Callable[..., Store]) -> None:
    get(reopened())
    with pytest.raises(UserError, match="its method is a, expected b"):
        get(reopened(), Key(KEY.kind, KEY.name, KEY.inputs, {"method": "b"}))
    with pytest.raises(UserError, match="belongs to another run: 'seed' is null there and 1 here"):
        reopened(seed=1)


def test_what_is_not_written_has_no_digest_and_is_made_each_time(reopened: Callable[..., Store]) -> None:
    store = reopened()
    assert get(store, write=lambda _: None) == (1.0, None, 1)
    assert get(store, value=2.0, write=lambda _: None) == (2.0, None, 1)
    assert store.artifacts == {}
    assert list(store.path.glob("*.safetensors")) == []


def test_of_several_only_the_missing_ones_are_made_and_together(reopened: Callable[..., Store]) -> None:
    keys = [Key("values", f"indices-a-k{k}", KEY.inputs, KEY.facts, "select") for k in (1, 2, 3)]
    calls: list[list[int]] = []

    def make(missing: list[int]) -> list[torch.Tensor]:
        calls.append(missing)
        return [torch.full((3,), float(i)) for i in missing]

    get(reopened(), keys[1], value=9.0)
    store = reopened()
    found = store.get_all(keys, make, read, write)
    assert [float(stored.value[0]) for stored in found] == [0.0, 9.0, 2.0]
    assert calls == [[0, 2]]
    assert store.reporter.said == ["reusing indices-a-k2"]
    again = reopened()
    assert [stored.digest for stored in again.get_all(keys, make, read, write)] == [stored.digest for stored in found]
    assert calls == [[0, 2]]


def test_a_step_inside_another_counts_once(reopened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = reopened(), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    with store.timed("predict"):
        now[0] += 1
        with store.timed("fit"):
            now[0] += 10
            with store.timed("rescale"):
                now[0] += 100
        with suppress(MemoryError), store.timed("fit"):
            now[0] += 1000
            raise MemoryError
        now[0] += 2
    assert store.seconds == {"rescale": 100, "fit": 1010, "predict": 3}


def test_what_is_too_large_is_not_stored_and_it_is_said(reopened: Callable[..., Store]) -> None:
    store = reopened()
    store.max_bytes = 24
    assert store.fits("a", {"factor": torch.zeros(3, dtype=torch.float64)})
    assert not store.fits("a", {"factor": torch.zeros(3, dtype=torch.float64), "more": torch.zeros(1)})
    assert store.reporter.said == ["a is larger than --max-artifact or the free disk space allows: not stored"]
