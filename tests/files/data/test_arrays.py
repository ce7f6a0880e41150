"""npz, npy and safetensors: every way in which a file can be wrong, once."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files.data.data_cases import COLUMNS, X, Y, load, refusal, train, whole


def test_missing_arrays_are_listed(folder: Path) -> None:
    for form in ("npz", "safetensors"):
        data: dict[str, Any] = {"format": form, "path": f"d.{form}"}
        assert "no array 'xx'" in refusal(folder, arrays={"input": "xx"}, **data)
        assert "available: " in refusal(folder, arrays={"input": "x", "target": "z"}, **data)
    np.savez(folder / "e.npz", other=X)
    assert "no array 'x' or 'X'" in refusal(folder, format="npz", path="e.npz")
    np.savez(folder / "e.npz", X=X)
    splits = {"train": {}, "test": {"path": "e.npz", "arrays": {"input": "X", "target": "y"}}}
    assert load(folder, ("test",), format="npz", path="d.npz", splits=splits)["test"].targets is None


def test_arrays_must_agree_in_rows(folder: Path) -> None:
    for x, y, expected in (
        (X, Y[:5], "20 rows, the target has 5"),
        (X[0, 0], Y, "single number"),
        (X[:0], Y[:0], "no rows"),
    ):
        np.savez(folder / "e.npz", x=x, y=y)
        assert expected in refusal(folder, format="npz", path="e.npz")


def test_object_arrays_are_never_unpickled(folder: Path) -> None:
    np.savez(folder / "o.npz", x=np.array([{}, 1], dtype=object))
    np.save(folder / "o.npy", np.array([{}, 1], dtype=object))
    for form in ("npz", "npy"):
        message = refusal(folder, format=form, path=f"o.{form}")
        assert "Python objects" in message
        assert "numpy.asarray(y, dtype=str)" in message
    np.save(folder / "s.npy", np.array(["a", "b"]))
    assert "not supported" in refusal(folder, format="npy", path="s.npy")


def test_fortran_order_byte_order_and_compression(folder: Path) -> None:
    for dtype in ("<f8", ">f8"):
        np.savez_compressed(folder / "f.npz", x=np.asfortranarray(X.astype(dtype)))
        np.save(folder / "f.npy", np.asfortranarray(X.astype(dtype)))
        for form in ("npz", "npy"):
            found = whole(train(folder, format=form, path=f"f.{form}"))
            assert found.dtype.isnative
            np.testing.assert_array_equal(found, X)


def test_npy_is_mapped_not_read(folder: Path) -> None:
    split = train(folder, format="npy", path="d.npy", memory=0)
    assert not split.raw.flags.owndata  # type: ignore[union-attr]
    assert "takes" in refusal(folder, format="npy", path="d.npy", memory=0, splits={"train": {"n": 3}})
    np.save(folder / "e.npy", X[:, 0])
    assert "2-D" in refusal(folder, format="npy", path="e.npy", columns={"target": 0})
    assert "no column names" in refusal(folder, format="npy", path="d.npy", columns=COLUMNS)


def npy_bytes(shape: str, payload: bytes = b"", descr: str = "<f8") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + payload


def write_member(path: Path, content: bytes, **how: Any) -> None:
    with zipfile.ZipFile(path, "w", **how) as archive:
        archive.writestr("x.npy", content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (npy_bytes("(1000000000000,)", b"12345678"), "declares 8000000000000 bytes"),
        (npy_bytes("(1,)", b"1234567890"), "but the file has 10"),
        (npy_bytes("(-1,)"), "bad .npy header"),
        (b"not numpy at all", "bad .npy header"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "bad .npy header"),
        (b"", "bad .npy header"),
    ],
)
def test_bad_headers(tmp_path: Path, content: bytes, expected: str) -> None:
    write_member(tmp_path / "b.npz", content)
    (tmp_path / "b.npy").write_bytes(content)
    for form in ("npz", "npy"):
        assert expected in refusal(tmp_path, format=form, path=f"b.{form}")


def test_damaged_npz(folder: Path) -> None:
    original = (folder / "d.npz").read_bytes()
    at = original.index(X.tobytes())
    flipped = original[:at] + bytes([original[at] ^ 1]) + original[at + 1 :]
    encrypted = io.BytesIO()
    with zipfile.ZipFile(encrypted, "w") as archive:
        archive.writestr("x.npy", npy_bytes("(0,)"))
        archive.infolist()[0].flag_bits |= 1
    write_member(folder / "l.npz", npy_bytes("(0,)"), compression=zipfile.ZIP_LZMA)
    cases = {
        original[: len(original) // 2]: "not a readable npz",
        b"": "not a readable npz",
        flipped: "CRC",
        encrypted.getvalue(): "encrypted",
        (folder / "l.npz").read_bytes(): "that numpy does not write",
    }
    for content, expected in cases.items():
        (folder / "e.npz").write_bytes(content)
        assert expected in refusal(folder, format="npz", path="e.npz")


def test_damaged_safetensors(folder: Path) -> None:
    original = (folder / "d.safetensors").read_bytes()
    for content in (b"", original[:100], b"\xff" * 64):
        (folder / "e.safetensors").write_bytes(content)
        assert "not a readable safetensors" in refusal(folder, format="safetensors", path="e.safetensors")
    (folder / "e.safetensors").write_bytes(
        struct.pack("<Q", 56) + b'{"x":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}} ' + b"\0\0"
    )
    assert "BF16" in refusal(folder, format="safetensors", path="e.safetensors")


@pytest.mark.parametrize("form", ["csv", "npz", "safetensors"])
def test_files_over_the_memory_limit_are_refused(folder: Path, form: str) -> None:
    message = refusal(folder, format=form, path=f"d.{form}", memory=500)
    assert "may be used" in message
    assert "--memory" in message


def test_memory_counts_all_files_together(folder: Path) -> None:
    np.savez(folder / "e.npz", x=X, y=Y)
    splits = {"train": {}, "test": {"path": "e.npz"}}
    data: dict[str, Any] = {"format": "npz", "path": "d.npz", "splits": splits}
    assert len(load(folder, ("train",), memory=1000, **data)) == 1
    assert "e.npz takes" in refusal(folder, "train", "test", memory=1000, **data)


BOMB_CHECK = """
import resource, sys
from pathlib import Path
from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data.arrays import read_npz
from sublaplace_cli.files.data.sources import ReadRequest
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_npz(ReadRequest(Path(sys.argv[1]), None, None, None, 2**40))
except UserError as error:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    sys.exit(0 if "decompression bomb" in str(error) and grown < 64 * 1024 else f"{error} {grown}")
sys.exit("read")
"""


def test_a_decompression_bomb_takes_no_memory(tmp_path: Path) -> None:
    rows = 2**28  # 2 GiB of zeros in about 2 MB
    with (
        zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy_bytes(f"({rows},)"))
        block = bytes(2**24)
        for _ in range(rows * 8 // len(block)):
            member.write(block)
    assert (tmp_path / "b.npz").stat().st_size < 2**24
    run = [sys.executable, "-c", BOMB_CHECK, str(tmp_path / "b.npz")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
