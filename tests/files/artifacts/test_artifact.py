"""Artifacts written at once: their digest, their bytes, and what is refused."""

import json

import pytest
import torch
from safetensors import safe_open

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.artifacts.artifact import open_artifact, write_artifact
from sublaplace_cli.files.artifacts.atomic import digest_of
from sublaplace_cli.files.artifacts.layout import whole_plans
from sublaplace_cli.files.artifacts.row_writer import RowWriter

TENSORS = {"values": torch.randn(6, 3), "indices": torch.arange(6)[::2], "factor": torch.randn(4, 4).double().T}
META = {"seed": 7, "name": "σ²", "shape": (1, 2), "nested": {"b": 1e-9, "a": None}}


def test_the_digest_is_returned_and_is_that_of_the_metadata(tmp_path):
    path = tmp_path / "a.safetensors"
    digest = write_artifact(path, "rows", META, TENSORS)
    found = open_artifact(path, "rows")
    assert digest == found.digest == digest_of(found.meta)
    assert found.meta["nested"] == META["nested"]
    for name, tensor in TENSORS.items():
        assert torch.equal(found.tensor(name), tensor)
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["sublaplace"])["checksum"] == digest


@pytest.mark.parametrize(
    "change", [{"meta": {**META, "seed": 8}}, {"tensors": {**TENSORS, "values": torch.ones(6, 3)}}]
)
def test_the_digest_depends_on_metadata_and_contents(tmp_path, change):
    first = write_artifact(tmp_path / "a.safetensors", "rows", META, TENSORS)
    other = write_artifact(tmp_path / "b.safetensors", "rows", change.get("meta", META), change.get("tensors", TENSORS))
    assert first != other


def test_rows_streamed_in_one_write_give_the_same_file(tmp_path):
    digest = write_artifact(tmp_path / "a.safetensors", "rows", META, TENSORS)
    writer = RowWriter(tmp_path / "b.safetensors", "rows", META, whole_plans(TENSORS))
    writer.write(0, TENSORS)
    assert writer.finish() == digest
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_a_changed_byte_is_found_when_its_tensor_is_read(tmp_path):
    path = tmp_path / "a.safetensors"
    write_artifact(path, "rows", META, TENSORS)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last byte of "values", the last tensor by name
    path.write_bytes(content)
    found = open_artifact(path, "rows")
    assert torch.equal(found.tensor("indices"), TENSORS["indices"])
    with pytest.raises(UserError, match=r"contents of 'values' \(rows 0…\) do not match their checksum"):
        found.tensor("values")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_artifact(path, "rows", META, TENSORS)
    with pytest.raises(UserError, match="it holds rows, expected indices"):
        open_artifact(path, "indices")
    with pytest.raises(UserError, match="no such file"):
        open_artifact(tmp_path / "b.safetensors", "rows")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="truncated or not a safetensors file"):
        open_artifact(path, "rows")
