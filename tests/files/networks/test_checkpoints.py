"""Checkpoint files: what is found in them, and what is refused without harm."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.networks.checkpoints import load_state

MEMORY = 1 << 28
STATE = {"a.weight": torch.arange(6.0).reshape(3, 2), "a.bias": torch.ones(3)}


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def save(path: Path, content: Any, **options: Any) -> Path:
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(content, path)
    else:
        torch.save(content, path, **options)
    return path


def assert_state(found: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(STATE)
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "m.pth", "m.ckpt"])
def test_formats(tmp_path: Path, name: str) -> None:
    assert_state(load_state(save(tmp_path / name, STATE), memory=MEMORY))


def test_legacy_format(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", STATE, _use_new_zipfile_serialization=False)
    assert_state(load_state(path, memory=MEMORY))


@pytest.mark.parametrize("name", ["state_dict", "model_state_dict", "model", "net", "weights"])
def test_usual_places(tmp_path: Path, name: str) -> None:
    assert_state(load_state(save(tmp_path / "m.pt", {name: STATE, "epoch": 3}), memory=MEMORY))


def test_key(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", {"ema": {"model": STATE}, "model": {"x": torch.ones(1)}, "a.b": STATE})
    assert_state(load_state(path, key="ema.model", memory=MEMORY))
    assert_state(load_state(path, key="a.b", memory=MEMORY))
    with pytest.raises(UserError, match=r"did you mean 'model'"):
        load_state(path, key="modell", memory=MEMORY)
    with pytest.raises(UserError, match=r"'model', 'a.b'; which of them"):
        load_state(path, memory=MEMORY)
    with pytest.raises(UserError, match=r"holds a dict of 1, expected"):
        load_state(path, key="ema", memory=MEMORY)


def test_one_unusual_place_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"key: student"):
        load_state(save(tmp_path / "m.pt", {"student": STATE}), memory=MEMORY)


def test_nothing_there(tmp_path: Path) -> None:
    for content, words in (
        ({"epoch": 1}, "'epoch'"),
        ([1], "a list"),
        (torch.ones(2), "a tensor"),
        ({}, "empty"),
    ):
        with pytest.raises(UserError, match=words):
            load_state(save(tmp_path / "m.pt", content), memory=MEMORY)


@pytest.mark.parametrize("legacy", [False, True])
def test_code_is_named_and_never_run(tmp_path: Path, legacy: bool) -> None:
    trap = tmp_path / "ran"
    path = save(tmp_path / "m.pt", {"w": torch.ones(2), "x": Bomb(trap)}, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UserError, match=r"posix.mkdir(.|\n)*model.state_dict\(\)"):
        load_state(path, memory=MEMORY)
    whole = save(tmp_path / "whole.pt", nn.Linear(2, 3), _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UserError, match=r"torch.nn.modules.linear.Linear"):
        load_state(whole, memory=MEMORY)
    assert not trap.exists()


def test_plain_pickle(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(UserError, match=r"plain pickle"):
        load_state(tmp_path / "m.pt", memory=MEMORY)
    assert not (tmp_path / "ran").exists()


def test_torchscript_and_exported_files_are_recognised(tmp_path: Path) -> None:
    torch.jit.trace(nn.Linear(2, 3), torch.ones(1, 2)).save(tmp_path / "m.pt")
    with pytest.raises(UserError, match=r"TorchScript"):
        load_state(tmp_path / "m.pt", memory=MEMORY)
    torch.export.save(torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),)), tmp_path / "e.pt2")
    with pytest.raises(UserError, match=r"build: \{exported"):
        load_state(tmp_path / "e.pt2", memory=MEMORY)


def test_suffix_and_content_disagree(tmp_path: Path) -> None:
    save(tmp_path / "m.pt", STATE).rename(tmp_path / "m.safetensors")
    with pytest.raises(UserError, match=r"called .safetensors, but(.|\n)*m.pt"):
        load_state(tmp_path / "m.safetensors", memory=MEMORY)
    save(tmp_path / "k.safetensors", STATE).rename(tmp_path / "k.pt")
    with pytest.raises(UserError, match=r"a safetensors file"):
        load_state(tmp_path / "k.pt", memory=MEMORY)


def test_no_such_file(tmp_path: Path) -> None:
    save(tmp_path / "model_best.pt", STATE)
    with pytest.raises(UserError, match=r"no such file(.|\n)*model_best.pt"):
        load_state(tmp_path / "model_bets.pt", memory=MEMORY)
    with pytest.raises(UserError, match=r"is a folder"):
        load_state(tmp_path, memory=MEMORY)


@pytest.mark.parametrize("head", [b"version https://git-lfs.github.com/spec/v1\n", b"<html>", b"abc", b"PK\x03\x04zz"])
def test_other_contents(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "m.pt").write_bytes(head)
    with pytest.raises(UserError, match=r"expected weights"):
        load_state(tmp_path / "m.pt", memory=MEMORY)
    (tmp_path / "m.pt").write_bytes(b"")
    with pytest.raises(UserError, match=r"is empty"):
        load_state(tmp_path / "m.pt", memory=MEMORY)


@pytest.mark.parametrize("name", ["m.pt", "l.pt", "m.safetensors"])
def test_every_truncation_is_an_error(tmp_path: Path, name: str) -> None:
    options = {"_use_new_zipfile_serialization": False} if name == "l.pt" else {}
    path = save(tmp_path / name, STATE, **options)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError):
            load_state(path, memory=MEMORY)


@pytest.mark.parametrize("legacy", [False, True])
def test_flipped_bytes_never_escape_as_other_errors(tmp_path: Path, legacy: bool) -> None:
    path = save(tmp_path / "m.pt", STATE, _use_new_zipfile_serialization=not legacy)
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x15]) + whole[position + 1 :])
        with contextlib.suppress(UserError):
            load_state(path, memory=MEMORY)


def rezip(path: Path, compression: int = zipfile.ZIP_STORED, **changes: bytes) -> None:
    with zipfile.ZipFile(path) as old:
        members = {info.filename: old.read(info) for info in old.infolist()}
    for name, data in changes.items():
        members[next(full for full in members if full.endswith(name.replace("__", ".")))] = data
    with zipfile.ZipFile(path, "w", compression) as new:
        for full, data in members.items():
            new.writestr(full, data)


def test_deflated_archives_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", {"w": torch.zeros(1000)})
    rezip(path, zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match=r"is compressed"):
        load_state(path, memory=MEMORY)


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", STATE)
    data = bytearray(path.read_bytes())
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 4)
    data[second + 42 : second + 46] = struct.pack("<I", 4)
    path.write_bytes(data)
    with pytest.raises(UserError):
        load_state(path, memory=MEMORY)


def test_storage_larger_than_its_record(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", {"w": torch.zeros(200)})
    with zipfile.ZipFile(path) as archive:
        content = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
    assert content.count(b"K\xc8") == 2
    rezip(path, data__pkl=content.replace(b"K\xc8", b"J\x00\x00\x00\x7f"))
    with pytest.raises(UserError, match=r"claims 7.9 GiB and has 800 B"):
        load_state(path, memory=MEMORY)


@pytest.mark.parametrize("hidden", ["another folder", "another case"])
def test_torch_must_read_the_pickle_that_was_inspected(tmp_path: Path, hidden: str) -> None:
    """A harmless pickle is inspected, while torch would read the other one, whose storage is too short."""
    path, harmless = save(tmp_path / "w.pt", STATE), save(tmp_path / "harmless.pt", {"a": 1})
    with zipfile.ZipFile(path) as archive:
        members = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(harmless) as archive:
        pickled = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    with zipfile.ZipFile(path, "w") as archive:
        if hidden == "another case":
            archive.writestr("x/data.pkl", pickled)
            members["DATA.PKL"] = members.pop("data.pkl")
        for name, content in members.items():
            archive.writestr(f"x/{name}", content[:4] if name == "data/0" else content)
        if hidden == "another folder":
            archive.writestr("data.pkl", pickled)
    with pytest.raises(UserError, match=r"refused, .*(in one folder|occurs twice)"):
        load_state(path, memory=MEMORY)


def test_legacy_storages_that_torch_would_not_fill(tmp_path: Path) -> None:
    """Without its key in the list at the end, a storage keeps what the memory held before."""
    path = save(tmp_path / "w.pt", STATE, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    stream = io.BytesIO(content)

    class Names(pickle._Unpickler):  # the Python one: it leaves the stream at the end of its pickle
        persistent_load = staticmethod(lambda key: key)

        def find_class(self, module: str, name: str) -> Any:
            return lambda *args: None

    for _ in range(4):
        Names(stream).load()
    path.write_bytes(content[: stream.tell()] + pickle.dumps([], 2) + bytes(4096))
    with pytest.raises(UserError, match="its list of storages is not that of its tensors"):
        load_state(path, memory=MEMORY)


def test_keys_of_storages_are_texts(tmp_path: Path) -> None:
    """torch tells 5 and "5" apart: of two such storages, one would not be filled."""
    path = save(tmp_path / "w.pt", {"a": torch.ones(2)}, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    key = content[content.index(b"FloatStorage") :].split(b"X", 1)[1]
    length = int.from_bytes(key[:4], "little")
    path.write_bytes(content.replace(b"X" + key[: 4 + length], b"K\x05", 1))
    with pytest.raises(UserError, match="the key of a storage is 5, expected a text"):
        load_state(path, memory=MEMORY)


@pytest.mark.parametrize("content", [b"]" * (9 << 20), b"N0" * (5 << 20)])
def test_a_pickle_that_is_too_large_to_inspect(tmp_path: Path, content: bytes) -> None:
    path = save(tmp_path / "w.pt", STATE)
    rezip(path, data__pkl=b"\x80\x02" + content + b"N.")
    with pytest.raises(UserError, match=r"its pickle is larger than 8\.0 MiB"):
        load_state(path, memory=MEMORY)


def test_a_pickle_that_names_thousands_of_classes(tmp_path: Path) -> None:
    path = save(tmp_path / "w.pt", STATE)
    rezip(path, data__pkl=b"\x80\x02" + b"".join(b"ca%d\nb\n0" % i for i in range(2000)) + b"N.")
    with pytest.raises(UserError, match="more than 1000 classes and functions"):
        load_state(path, memory=MEMORY)


def test_a_header_of_a_million_names(tmp_path: Path) -> None:
    entries = ",".join(f'"{i:x}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(400_000))
    head = f"{{{entries}}}".encode()
    head += b" " * (-len(head) % 8)
    (tmp_path / "w.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(UserError, match=r"its header has .* more than 16\.0 MiB"):
        load_state(tmp_path / "w.safetensors", memory=MEMORY)


def test_legacy_storage_larger_than_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", {"w": torch.zeros(200)}, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"K\xc8", b"\x8a\x07" + (10**15).to_bytes(7, "little")))
    with pytest.raises(UserError, match=r"claim"):
        load_state(path, memory=MEMORY)


def test_memo_and_bytearray_bombs(tmp_path: Path) -> None:
    for bomb in (b"N" + b"r\xff\xff\xff\xff" + b".", b"\x96" + struct.pack("<Q", 1 << 45) + b"."):
        path = save(tmp_path / "m.pt", STATE)
        rezip(path, data__pkl=b"\x80\x02" + bomb)
        with pytest.raises(UserError):
            load_state(path, memory=MEMORY)


def test_stride_zero_giants_are_named(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", {"fine": torch.ones(2), "giant": torch.zeros(1).expand(10**6, 10**6)})
    with pytest.raises(UserError, match=r"'giant'"):
        load_state(path, memory=MEMORY)


def test_too_large_for_memory(tmp_path: Path) -> None:
    for name in ("m.pt", "m.safetensors"):
        with pytest.raises(UserError, match=r"--memory"):
            load_state(save(tmp_path / name, {"w": torch.zeros(10_000)}), memory=1000)


def test_meta_and_sparse_tensors(tmp_path: Path) -> None:
    for tensor in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(UserError, match=r"'w'|would run code"):
            load_state(save(tmp_path / "m.pt", {"w": tensor}), memory=MEMORY)


def test_unreadable_safetensors_header(tmp_path: Path) -> None:
    buffer = io.BytesIO(struct.pack("<Q", 20) + b'{"w": {"dtype": "F32"')
    (tmp_path / "m.safetensors").write_bytes(buffer.getvalue())
    with pytest.raises(UserError):
        load_state(tmp_path / "m.safetensors", memory=MEMORY)
