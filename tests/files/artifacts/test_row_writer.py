"""Rows written a few at a time: pieces of several writes, resumed inside a piece, never from damaged bytes."""

import json
import os

import pytest
import torch

from sublaplace_cli.files.artifacts import layout as artifact_layout
from sublaplace_cli.files.artifacts.artifact import open_artifact
from sublaplace_cli.files.artifacts.layout import by_rows
from sublaplace_cli.files.artifacts.row_writer import RowWriter

ROWS, STEP = 22, 2
TENSORS = {"wide": torch.randn(ROWS, 3, 5), "narrow": torch.arange(ROWS)}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(artifact_layout, "PIECE_BYTES", 3 * STEP * 60)  # of "wide": three writes


def writer(path):
    plans = {name: by_rows(t.dtype, tuple(t.shape), STEP) for name, t in TENSORS.items()}
    return RowWriter(path, "rows", {}, plans)


def fill(target, start, stop):
    for a in range(start, stop, STEP):
        target.write(a, {name: t[a : a + STEP] for name, t in TENSORS.items()})


def test_pieces_hold_several_writes(tmp_path):
    target = writer(tmp_path / "a.safetensors")
    assert target.plans["wide"].rows_per_piece == 3 * STEP
    fill(target, 0, ROWS)
    digest = target.finish()
    found = open_artifact(tmp_path / "a.safetensors", "rows")
    assert found.digest == digest
    for start in range(0, ROWS, 3):
        for stop in range(start + 1, ROWS + 1, 4):
            for name, tensor in TENSORS.items():
                assert torch.equal(found.rows(name, start, stop), tensor[start:stop])


@pytest.mark.parametrize("done", [2, 6, 8, 20])
def test_resumes_inside_a_piece(tmp_path, done):
    whole = writer(tmp_path / "whole.safetensors")
    fill(whole, 0, ROWS)
    expected = whole.finish()
    first = writer(tmp_path / "a.safetensors")
    fill(first, 0, done)
    first.checkpoint(done)
    fill(first, done, done + STEP)  # not recorded: written again
    first.close()
    second = writer(tmp_path / "a.safetensors")
    assert second.rows_done == done
    fill(second, done, ROWS)
    assert second.finish() == expected
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def test_damaged_rows_of_an_unfinished_piece_are_not_resumed(tmp_path):
    first = writer(tmp_path / "a.safetensors")
    fill(first, 0, 8)
    first.checkpoint(8)
    first.close()
    with open(first.part, "r+b") as file:
        file.seek(first.offsets["wide"] + 7 * first.plans["wide"].row_bytes)
        file.write(b"\x01")
    assert writer(tmp_path / "a.safetensors").rows_done == 0


def test_a_piece_is_read_whole_once_and_then_only_the_rows_needed(tmp_path, monkeypatch):
    target = writer(tmp_path / "a.safetensors")
    fill(target, 0, ROWS)
    target.finish()
    found = open_artifact(tmp_path / "a.safetensors", "rows")
    read_ranges = []
    read = type(found)._read
    monkeypatch.setattr(
        type(found), "_read", lambda self, name, a, b: read_ranges.append((a, b)) or read(self, name, a, b)
    )
    found.rows("wide", 7, 8)
    found.rows("wide", 8, 9)
    found.rows("wide", 11, 13)
    assert read_ranges == [(6, 12), (8, 9), (11, 18)]


def unfinished(tmp_path):
    """The record of a file with 8 of its rows."""
    first = writer(tmp_path / "a.safetensors")
    fill(first, 0, 8)
    first.checkpoint(8)
    first.close()
    return first, json.loads(first.record.read_text())


DEEP = "[" * 100_000
ODD_RECORDS = {
    "no object": "[]",
    "no JSON": "{",
    "deep": DEEP,
    "rows_done": [-1, -8, 8.0, "8", True, None, [], 10**30, 1e300, 2**62, ROWS + 1],
    "digests": [None, [], {}, {"wide": []}, {"wide": 5, "narrow": 5}, {"wide": ["0" * 64], "narrow": ["0" * 64]}],
    "running": [None, [], {}, {"wide": 5, "narrow": 5}],
    "identity": [None, 5, "", []],
}


@pytest.mark.parametrize("key", ODD_RECORDS)
def test_a_record_that_cannot_be_right_is_not_resumed(tmp_path, key):
    first, record = unfinished(tmp_path)
    values = ODD_RECORDS[key]
    texts = [values] if isinstance(values, str) else [json.dumps({**record, key: value}) for value in values]
    texts += [] if isinstance(values, str) else [json.dumps({k: v for k, v in record.items() if k != key})]
    for text in texts:
        first.record.write_text(text)
        again = writer(tmp_path / "a.safetensors")
        assert again.rows_done == 0, text[:200]
        fill(again, 0, ROWS)
        again.finish()
        found = open_artifact(tmp_path / "a.safetensors", "rows")
        assert all(torch.equal(found.tensor(name), tensor) for name, tensor in TENSORS.items())
        (tmp_path / "a.safetensors").unlink()
        first, record = unfinished(tmp_path)
    first.record.write_text(json.dumps(record))
    assert writer(tmp_path / "a.safetensors").rows_done == 8, "the record itself is right"


@pytest.mark.parametrize("suffix", [".part", ".part.json"])
def test_links_and_pipes_are_not_resumed(tmp_path, suffix):
    for is_link in (True, False):
        unfinished(tmp_path)
        path, elsewhere = tmp_path / f"a.safetensors{suffix}", tmp_path / "elsewhere"
        path.rename(elsewhere)
        before = elsewhere.read_bytes()
        if is_link:
            path.symlink_to(elsewhere)
        else:
            os.mkfifo(path)
        again = writer(tmp_path / "a.safetensors")
        assert again.rows_done == (8 if is_link and suffix == ".part.json" else 0), "a record is only read"
        fill(again, again.rows_done, ROWS)
        again.finish()
        assert elsewhere.read_bytes() == before
        assert open_artifact(tmp_path / "a.safetensors", "rows").digest
        (tmp_path / "a.safetensors").unlink()
