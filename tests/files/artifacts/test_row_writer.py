"""Rows written a few at a time: pieces of several writes, resumed inside a piece, never from damaged bytes."""

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
