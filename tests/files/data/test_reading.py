"""Any exception of a parser is explained with the file's name; a bug of our own is not hidden as one."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from files.data.data_cases import X, Y, refusal, train

from sublaplace_cli.errors import RunError, UserError
from sublaplace_cli.files.data import arrays, images
from sublaplace_cli.files.data.columnar import parquet
from sublaplace_cli.files.reading import reading

ERRORS = [
    tokenize.TokenError("EOF in multi-line statement"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    MemoryError(),
    RecursionError("too deep"),
    struct.error("unpack requires 4 bytes"),
    zlib.error("Error -3"),
    zipfile.BadZipFile("x" * 10_000),
    OSError(5, "Input/output error"),
    KeyError("two\nlines"),
]


@pytest.mark.parametrize("error", ERRORS, ids=[type(error).__name__ for error in ERRORS])
def test_any_exception_of_a_parser_is_explained(error: Exception) -> None:
    with pytest.raises(UserError, match=r"^a\.npz: not readable: .+") as caught, reading("a.npz", "not readable"):
        raise error
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("error", [RunError("disk full"), UserError("wrong"), KeyboardInterrupt(), SystemExit(1)])
def test_our_own_errors_and_interruptions_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, reading("a.npz", "not readable"):
        raise error
    assert caught.value is error


def test_a_bug_outside_the_parser_is_not_hidden(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    pyarrow = pytest.importorskip("pyarrow")
    from PIL import Image
    from pyarrow import parquet as writer

    writer.write_table(pyarrow.table({"x": X[:, 0], "y": Y}), folder / "d.parquet")
    for name in ("ant", "bee"):
        (folder / "p" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(folder / "p" / name / "a.png")
    monkeypatch.setattr(arrays, "npy_header", bug)
    monkeypatch.setattr(arrays, "SAFETENSORS_ITEM", None)
    monkeypatch.setattr(parquet, "refuse_if_larger", bug)
    monkeypatch.setattr(images, "refuse_if_larger", bug)
    for form in ("npz", "npy", "parquet"):
        with pytest.raises(ZeroDivisionError):
            train(folder, format=form, path=f"d.{form}")
    with pytest.raises(ZeroDivisionError):
        train(folder, format="imagefolder", path="p", task="binary")
    with pytest.raises(TypeError):
        train(folder, format="safetensors", path="d.safetensors")


def test_an_image_with_another_size_than_its_header_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("ant", "bee"):
        (tmp_path / "p" / name).mkdir(parents=True)
        image.fromarray(np.zeros((5, 2, 3), np.uint8)).save(tmp_path / "p" / name / "a.png")
    monkeypatch.setattr(images, "_common_size", lambda *_: (5, 2))
    message = refusal(tmp_path, format="imagefolder", path="p", task="binary")
    assert "5x2 in its header, but 2x5 decoded" in message


def test_a_file_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    for form in ("csv", "npy"):
        message = refusal(folder, format=form, path=f"d.{form}")
        assert f"d.{form}: cannot be read: Permission denied" in message
