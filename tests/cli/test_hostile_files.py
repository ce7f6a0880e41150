"""Specs and data files that are damaged, malicious or no files at all: exit code 2, one message, no waiting."""

from __future__ import annotations

import os
import socket
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.cli_tools import Project, Tool, refused

CHOICE = ("evaluate", "--method", "gradient,full", "--k", "5", "--json")


def npy_bytes(header: str, payload: bytes = b"") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + payload


def header(shape: object, descr: str = "<f8") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"


BAD_HEADERS = {
    "a token that never ends": header("((1,)"),
    "an open text": "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), 'x': '''",
    "an odd indent": "  {'a': 1}\n {'b': 2}\n",
    "many signs": "-" * 9000 + "1",
    "digits": header(f"({'9' * 4000}, {'9' * 4000})"),
    "empty, but wide": header("(0, 4611686018427387904)"),
    "many axes": header((1,) * 65),
    "no dtype": header("(3,)", descr="<z9"),
    "shape of texts": header("('a',)"),
}


def use_arrays(project: Project, form: str) -> None:
    data = {"format": form, "path": f"data.{form}", "splits": {"train": {"rows": "0:2"}, "test": {"rows": "0:2"}}}
    project.use(data=data)


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_array_headers(tool: Tool, project: Project, name: str) -> None:
    content = npy_bytes(BAD_HEADERS[name])
    (project.folder / "data.npy").write_bytes(content)
    with zipfile.ZipFile(project.folder / "data.npz", "w") as archive:
        archive.writestr("x.npy", content)
    for form in ("npy", "npz"):
        use_arrays(project, form)
        refused(tool(*CHOICE, cwd=project.folder), f"data.{form}", ".npy header")


def test_a_member_name_that_is_not_utf8(tool: Tool, project: Project) -> None:
    project.npz()
    path = project.folder / "data.npz"
    content = bytearray(path.read_bytes())
    for start, flags in ((content.index(b"PK\x03\x04"), 6), (content.index(b"PK\x01\x02"), 8)):
        content[start + flags + 1] |= 0x08  # "the name is UTF-8"
    content[content.index(b"x.npy")] = 0xFF  # in the member itself; the directory says x.npy
    path.write_bytes(content)
    refused(tool(*CHOICE, cwd=project.folder), "data.npz", "not a readable npz file")


def test_every_flipped_byte_of_the_directory_is_explained(tool: Tool, project: Project) -> None:
    project.npz(x=np.ones((30, 3), np.float32))
    path = project.folder / "data.npz"
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    for position in range(start, len(content), 7):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        run = tool(*CHOICE, "--dry-run", cwd=project.folder)
        if run.code:
            refused(run)


def test_rows_without_values(tool: Tool, project: Project) -> None:
    """A small file that declares 10¹² rows of nothing: no memory is allocated for their numbers."""
    (project.folder / "data.npy").write_bytes(npy_bytes(header("(1000000000000, 0)")))
    use_arrays(project, "npy")
    refused(tool(*CHOICE, cwd=project.folder), "data.npy", "(1000000000000, 0)", "each row needs a value")


def write_parquet(project: Project) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    values = np.hstack([project.x, project.y])
    columns = dict(zip(["a", "b", "c", "y0"], values.T, strict=True))
    path = project.folder / "data.parquet"
    parquet.write_table(pyarrow.table(columns), path, compression="none", use_dictionary=False, store_schema=False)
    project.use(data={**project.spec["data"], "format": "parquet", "path": "data.parquet"})
    return path.read_bytes()


def zigzag(number: int) -> bytes:
    """An integer of at most one byte in Thrift's compact form."""
    return bytes([2 * number])


def test_a_parquet_file_with_a_wrong_row_count(tool: Tool, project: Project) -> None:
    content = write_parquet(project)
    path = project.folder / "data.parquet"
    assert tool(*CHOICE, cwd=project.folder).code == 0
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    counts = [at for at in range(start, len(content) - 8) if content[at : at + 2] == b"\x16" + zigzag(30)]
    assert len(counts) >= 3  # of the file, of the columns, of the row group
    for at in counts:
        for wrong in (29, 31, 0):
            path.write_bytes(content[: at + 1] + zigzag(wrong) + content[at + 2 :])
            refused(tool(*CHOICE, cwd=project.folder), "data.parquet", "not a readable parquet file")


@pytest.mark.parametrize("value", ["1e200", "-1e101", "1e308"])
def test_values_whose_squares_overflow(tool: Tool, project: Project, value: str) -> None:
    lines = (project.folder / "data.csv").read_text().splitlines()
    for column, what in ((3, "target"), (0, "input")):
        cells = lines[4].split(",")
        cells[column] = value
        (project.folder / "data.csv").write_text("\n".join([*lines[:4], ",".join(cells), *lines[5:]]))
        run = tool(*CHOICE, cwd=project.folder)
        refused(run, "data.csv", f"1 {what} value", "beyond ±1e+100", "line 5", f"{float(value)}")


@pytest.mark.parametrize("key", ["noise_variance", "prior_precision"])
@pytest.mark.parametrize("value", ["1e-320", "1e-200", "1e200", "-1"])
def test_hyperparameters_that_cannot_be_divided_by(tool: Tool, project: Project, key: str, value: str) -> None:
    path = project.use(posterior={}).folder / "sublaplace.yaml"
    path.write_text(path.read_text().replace("posterior: {}", f"posterior: {{{key}: {value}}}"))
    refused(tool(*CHOICE, cwd=project.folder), f"posterior.{key}", f"{float(value) if value != '-1' else -1}")


@pytest.mark.parametrize("value", ["1e-100", "1e100"])
@pytest.mark.parametrize("key", ["noise_variance", "prior_precision"])
def test_the_most_extreme_hyperparameters(tool: Tool, project: Project, key: str, value: str) -> None:
    path = project.use(posterior={}).folder / "sublaplace.yaml"
    path.write_text(path.read_text().replace("posterior: {}", f"posterior: {{{key}: {value}}}"))
    run = tool(*CHOICE, cwd=project.folder)
    if run.code:
        refused(run, code=3)


@pytest.mark.parametrize(
    "parts",
    [
        {"transforms": [{"scale": 1e300}, {"scale": 1e300}]},
        {"transforms": [{"normalise": {"mean": 0, "std": 1e-320}}]},
        {"transforms": [{"scale": 1e200}], "standardise": {"input": "from-train"}},
        {"standardise": {"target": {"mean": 1e308, "std": 1e-100}}},
        {"standardise": {"target": {"mean": -1e160, "std": 1}}},
        {"standardise": {"input": {"mean": 1e308, "std": 1e-100}}},
    ],
)
def test_scales_that_overflow(tool: Tool, project: Project, parts: dict[str, Any]) -> None:
    project.use(data={**project.spec["data"], **parts})
    refused(tool(*CHOICE, cwd=project.folder), "data.", "std")


def special_files(folder: Path) -> list[str]:
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    os.symlink("/dev/zero", folder / "endless")
    os.symlink(folder / "pipe", folder / "linked")
    here = os.getcwd()
    os.chdir(folder)  # a socket's path has at most 108 bytes
    try:
        socket.socket(socket.AF_UNIX).bind("socket")
    finally:
        os.chdir(here)
    return ["pipe", "folder", "endless", "linked", "socket"]


def test_a_spec_that_is_no_regular_file(tool: Tool, project: Project) -> None:
    for name in special_files(project.folder):
        reason = "No such device" if name == "socket" else "not a regular file"
        refused(tool(*CHOICE, "--spec", name, cwd=project.folder), f"cannot read the spec {name}", reason)


@pytest.mark.parametrize("form", ["csv", "npy", "npz", "safetensors", "parquet", "arrow"])
def test_data_that_are_no_regular_file(tool: Tool, project: Project, form: str) -> None:
    for name in special_files(project.folder):
        project.use(data={"format": form, "path": name, "splits": {"train": {}, "test": {"rows": "0:2"}}})
        run = tool(*CHOICE, "--allow-outside", cwd=project.folder)
        refused(run, name, "is not a regular file")


def test_paths_that_are_too_long(tool: Tool, project: Project) -> None:
    for path in ("x" * 5000, "x/" * 3000):
        project.use(data={**project.spec["data"], "path": path})
        run = tool(*CHOICE, cwd=project.folder)
        refused(run, "sublaplace.yaml:", "data.path: cannot follow the path x", "File name too long")
        assert len(run.err) < 1000


def test_predictions_of_one_number(tool: Tool, project: Project) -> None:
    np.save(project.folder / "oracle.npy", np.float64(3))
    project.use(oracle={"predictions": "oracle.npy"})
    refused(tool(*CHOICE, cwd=project.folder), "oracle.npy", "single number")


def test_many_problems_are_counted(tool: Tool, project: Project) -> None:
    path = project.folder / "sublaplace.yaml"
    path.write_text(path.read_text() + "version: 1\n" * 5000)
    run = tool(*CHOICE, cwd=project.folder)
    refused(run, "duplicate key", "and 4950 more problems")
    assert run.err.count("\n") == 51


def test_many_column_names_are_not_all_listed(tool: Tool, project: Project) -> None:
    names = [f"column{number}" for number in range(200_000)]
    (project.folder / "data.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * len(names)) + "\n")
    run = tool(*CHOICE, cwd=project.folder)
    refused(run, "data.csv", "no column 'y0'")
    assert len(run.err) < 10_000


def test_a_zip_directory_of_millions_of_entries(tool: Tool, project: Project) -> None:
    project.npz()
    path = project.folder / "data.npz"
    content = path.read_bytes()
    at = content.rindex(b"PK\5\6")
    size, start = struct.unpack("<LL", content[at + 12 : at + 20])
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, *[0] * 7, 5, *[0] * 6)
    more = b"".join(entry + b"%05d" % i for i in range(60_000)) * 3
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65_000, 65_000, size + len(more), start, 0)
    path.write_bytes(content[: start + size] + more + end)
    refused(tool(*CHOICE, cwd=project.folder), "data.npz", "its directory has")


def test_images_behind_links_that_lead_out(tool: Tool, project: Project, tmp_path: Path) -> None:
    from PIL import Image

    outside = tmp_path / "outside"
    outside.mkdir()
    Image.new("RGB", (2, 2)).save(outside / "a.png")
    (project.folder / "images" / "b").mkdir(parents=True)
    Image.new("RGB", (2, 2)).save(project.folder / "images" / "b" / "b.png")
    (project.folder / "images" / "a").symlink_to(outside)
    splits = {"train": {"rows": "0:2"}, "test": {"rows": "0:2"}}
    project.use(task="binary", data={"format": "imagefolder", "path": "images", "splits": splits})
    refused(tool(*CHOICE, cwd=project.folder), "leads out of the folder", "--allow-outside")
    assert "leads out" not in tool(*CHOICE, "--allow-outside", cwd=project.folder).err


def test_a_page_that_expands(tool: Tool, project: Project) -> None:
    """The footer claims a few hundred bytes, the page expands to more than the memory that is allowed."""
    (project.folder / "data.parquet").write_bytes(parquet_bomb(2**30))
    project.use(data={**project.spec["data"], "format": "parquet", "path": "data.parquet"})
    run = tool(*CHOICE, "--memory", "64MiB", cwd=project.folder)
    refused(run, "data.parquet", "expands to more than the allowed memory")
    assert run.peak < 2**26 + 10**9


def parquet_bomb(size: int) -> bytes:
    """A parquet file of 30 rows, written by hand: after its 30 numbers the page of column a has `size` zeros."""
    import pyarrow

    def number(n: int) -> bytes:
        n <<= 1
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    def record(*fields: tuple[int, int, bytes]) -> bytes:
        out, last = b"", 0
        for i, kind, content in fields:
            out, last = out + bytes([(i - last) << 4 | kind]) + content, i
        return out + b"\0"

    def text(name: str) -> bytes:
        return bytes([len(name)]) + name.encode()

    def many(kind: int, items: list[bytes]) -> bytes:
        return bytes([len(items) << 4 | kind]) + b"".join(items)

    I32, I64, BINARY, LIST, RECORD = 5, 6, 8, 9, 12
    names, out, columns = ["a", "b", "c", "y0"], b"PAR1", []
    for name in names:
        plain = np.linspace(0, 1, 30).tobytes() + (bytes(size) if name == "a" else b"")
        packed = pyarrow.Codec("zstd").compress(plain, asbytes=True)
        counts = record((1, I32, number(30)), (2, I32, number(0)), (3, I32, number(3)), (4, I32, number(3)))
        sizes = ((1, I32, number(0)), (2, I32, number(len(plain))), (3, I32, number(len(packed))))
        head, offset = record(*sizes, (5, RECORD, counts)), len(out)
        out += head + packed
        facts = record(
            (1, I32, number(5)), (2, LIST, many(I32, [number(0)])), (3, LIST, many(BINARY, [text(name)])),
            (4, I32, number(6)), (5, I64, number(30)), (6, I64, number(400)), (7, I64, number(len(head) + len(packed))),
            (9, I64, number(offset)),
        )  # fmt: skip
        columns.append(record((2, I64, number(offset)), (3, RECORD, facts)))
    schema = [record((4, BINARY, text("schema")), (5, I32, number(4)))]
    schema += [record((1, I32, number(5)), (3, I32, number(0)), (4, BINARY, text(name))) for name in names]
    group = record((1, LIST, many(RECORD, columns)), (2, I64, number(1600)), (3, I64, number(30)))
    start = ((1, I32, number(1)), (2, LIST, many(RECORD, schema)), (3, I64, number(30)))
    foot = record(*start, (4, LIST, many(RECORD, [group])))
    return out + foot + len(foot).to_bytes(4, "little") + b"PAR1"


def test_buffers_of_arrow_that_expand(tool: Tool, project: Project) -> None:
    """A few kilobytes that declare 2³⁰ bytes in one buffer, and a stream whose length is a lie."""
    import pyarrow
    from pyarrow import ipc

    path = project.folder / "data.arrow"
    zeros = pyarrow.table(dict.fromkeys(["a", "b", "c", "y0"], np.zeros(2**25)))
    with ipc.new_stream(str(path), zeros.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(zeros)
    assert path.stat().st_size < 2**20
    data = {**project.spec["data"], "format": "arrow", "path": "data.arrow"}
    project.use(data=data)
    run = tool(*CHOICE, "--memory", "64MiB", cwd=project.folder)
    refused(run, "data.arrow", "more than the allowed memory")
    assert run.peak < 2**26 + 10**9
    few = pyarrow.table(dict(zip(["a", "b", "c", "y0"], np.hstack([project.x, project.y]).T, strict=True)))
    with ipc.new_stream(str(path), few.schema) as writer:
        writer.write_table(few)
    content = path.read_bytes()
    assert tool(*CHOICE, cwd=project.folder).code == 0
    lengths = [at for at in range(0, len(content) - 8, 8) if content[at : at + 8] == (30).to_bytes(8, "little")]
    assert lengths
    for at in lengths:
        for wrong in (31, 2**40, 2**62, 2**63, 2**64 - 1):
            path.write_bytes(content[:at] + wrong.to_bytes(8, "little") + content[at + 8 :])
            run = tool(*CHOICE, "--memory", "64MiB", cwd=project.folder)
            refused(run, "data.arrow", "not a readable Arrow file")
