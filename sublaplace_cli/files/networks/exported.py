"""A torch.export file (.pt2) → a network. Only JSON and raw tensor bytes are read: nothing in the file can run."""

import json
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ...sizes import format_bytes
from .aten_graph import AtenGraph
from .containers import check_file, check_members, content_kind, members_without_root, open_zip
from .exported_graph import SCALAR_TYPES, free_early, graph_inputs, graph_steps, single_output, size

EXPORTED_FILE = "a torch.export file (.pt2)"
REEXPORT = "save it again with torch.export.save of torch 2.10 or later"
SCHEMA_MAJOR = 8
GRAPH, WEIGHTS, CONSTANTS = "models/model.json", "data/weights/", "data/constants/"
# sample inputs (a pickle) and extra files are allowed, but never opened
MEMBERS = re.compile(
    r"models/model\.json|data/weights/(weight_\d+|model_weights_config\.json)|archive_(format|version)|byteorder|version"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)|data/sample_inputs/.*|extra/.*|\.data/.*|\.[a-z_]+"
)


def load_exported(path: Path, *, memory: int) -> nn.Module:
    """The network of a .pt2 file; its parameters have their exported names."""
    check_file(path, EXPORTED_FILE, memory)
    kind = content_kind(path)
    if kind != "zip":
        raise UserError(f"{path}: is {'a ' + kind + ' file' if kind.isalpha() else kind}, expected {EXPORTED_FILE}")
    with open_zip(path, EXPORTED_FILE) as archive:
        check_members(path, archive)
        members = members_without_root(archive)
        _refuse_other_members(path, archive, members)
        try:
            return _network(archive, members)
        except UserError as error:
            raise UserError(f"{path}: {error.message}", hint=error.hint) from error
        # raised by JSON that does not have the expected form
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError, RuntimeError) as error:
            message = f"its content is not what torch.export writes ({type(error).__name__}: {str(error)[:120]})"
            raise UserError(f"{path}: {message}", hint=REEXPORT) from error


def _refuse_other_members(path: Path, archive: zipfile.ZipFile, members: Mapping[str, str]) -> None:
    if "constants.pkl" in members or "data.pkl" in members:
        raise UserError(f"{path}: is a torch.save or TorchScript file, expected {EXPORTED_FILE}")
    if "serialized_exported_program.json" in members or f"{WEIGHTS}model.pt" in members:
        raise UserError(f"{path}: is a torch.export file of an older format, which contains pickles", hint=REEXPORT)
    strange = [name for name in members if not MEMBERS.fullmatch(name)]
    if strange:
        raise UserError(f"{path}: has the unknown member '{strange[0]}', expected {EXPORTED_FILE}", hint=REEXPORT)
    if GRAPH not in members:
        raise UserError(f"{path}: has no {GRAPH}, expected {EXPORTED_FILE}", hint=REEXPORT)
    if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
        raise UserError(f"{path}: was written on a big-endian machine, expected little-endian", hint=REEXPORT)


def _network(archive: zipfile.ZipFile, members: Mapping[str, str]) -> nn.Module:
    program = json.loads(archive.read(members[GRAPH]))
    major = program["schema_version"]["major"]
    if major != SCHEMA_MAJOR:
        raise UserError(f"is of schema version {major}, expected {SCHEMA_MAJOR}", hint=REEXPORT)
    module, graph = program["graph_module"], program["graph_module"]["graph"]
    tensors = _read_tensors(archive, members, WEIGHTS, "model_weights_config.json")
    constant_tensors = _read_tensors(archive, members, CONSTANTS, "model_constants_config.json")
    stored, constants, inputs = graph_inputs(module["signature"]["input_specs"], graph["tensor_values"])
    used = {name: (tensors | constant_tensors)[name] for name in stored.values()}
    steps = graph_steps(graph["nodes"], {*stored, *constants, *inputs}, set(stored))
    output = single_output(module["signature"]["output_specs"])
    steps = free_early(steps, output, set(stored))
    return AtenGraph(used, constants, stored, inputs, steps, output, set(constant_tensors)).eval()


def _read_tensors(archive: zipfile.ZipFile, members: Mapping[str, str], folder: str, config: str) -> dict[str, Tensor]:
    read: dict[str, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    for name, entry in json.loads(archive.read(members[folder + config]))["config"].items():
        if entry["use_pickle"] or entry["tensor_meta"] is None or not re.fullmatch(r"\w+_\d+", entry["path_name"]):
            raise UserError(f"stores '{name}' as a pickle, which would run code; expected a plain tensor")
        identity = json.dumps(entry, sort_keys=True)  # tied tensors have the same entry and stay one tensor
        if identity not in read:
            read[identity] = _tensor(name, archive.read(members[folder + entry["path_name"]]), entry)
        tensors[name] = read[identity]
    return tensors


def _tensor(name: str, data: bytes, entry: Mapping[str, Any]) -> Tensor:
    meta = entry["tensor_meta"]
    dtype = SCALAR_TYPES[meta["dtype"]]
    if dtype in (torch.float16, torch.bfloat16):
        raise UserError(f"stores '{name}' as {dtype}, expected float32 or float64", hint="export model.float()")
    shape, strides = [size(s) for s in meta["sizes"]], [size(s) for s in meta["strides"]]
    offset = size(meta["storage_offset"])
    stored = len(data) // dtype.itemsize
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if math.prod(shape) == 0:
        tensor = torch.empty(shape, dtype=dtype)
    elif last >= stored or math.prod(shape) > stored:
        raise UserError(f"'{name}' {tuple(shape)} needs more than the {format_bytes(len(data))} stored for it")
    else:
        flat = torch.frombuffer(bytearray(data), dtype=dtype, count=stored)
        tensor = flat.as_strided(shape, strides, offset).contiguous()
    return nn.Parameter(tensor, requires_grad=bool(meta["requires_grad"])) if entry["is_param"] else tensor
