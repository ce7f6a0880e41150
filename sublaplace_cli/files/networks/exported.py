"""A torch.export file (.pt2) → a network. Only JSON and raw tensor bytes are read: nothing in the file can run."""

import json
import math
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.jacobian.capture import SAMPLE_ROWS
from ...errors import UserError
from ...json_files import parse_json
from ...sizes import format_bytes
from .aten_graph import AtenGraph, GraphSignature
from .aten_operators import TRAINING_FLAG, find_function, is_whole_number
from .aten_steps import GraphStep, InputDevice, Ref, references
from .containers import DAMAGE, check_file, check_members, content_kind, members_without_root, open_zip, refuse_above

EXPORTED_FILE = "a torch.export file (.pt2)"
REEXPORT = "save it again with torch.export.save of torch 2.10 or later"
SCHEMA_MAJOR = 8
GRAPH, WEIGHTS, CONSTANTS = "models/model.json", "data/weights/", "data/constants/"
# sample inputs (a pickle) and extra files are allowed, but never opened
MEMBERS = re.compile(
    r"models/model\.json|data/weights/(weight_\d+|model_weights_config\.json)|archive_(format|version)|byteorder|version"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)|data/sample_inputs/.*|extra/.*|\.data/.*|\.[a-z_]+"
)
DYNAMIC = (
    "export it with a free batch dimension:"
    " torch.export.export(model.eval(), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)),"
    " where x has two or more rows"
)
# The numbers of torch._export.serde.schema.ScalarType
SCALAR_TYPES = {1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64}
SCALAR_TYPES |= {6: torch.float16, 7: torch.float32, 8: torch.float64, 12: torch.bool, 13: torch.bfloat16}
MEMORY_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 4: torch.preserve_format}
PLAIN: dict[str, Any] = {"as_int": int, "as_float": (int, float), "as_bool": bool, "as_string": str}
PLAIN |= dict.fromkeys(("as_ints", "as_floats", "as_bools"), list)
SYMBOLIC = ("as_sym_int", "as_sym_float", "as_sym_bool")


def load_exported(path: Path, *, memory: int) -> nn.Module:
    """The network of a .pt2 file; its parameters have their exported names."""
    check_file(path, EXPORTED_FILE, memory)
    kind = content_kind(path)
    if kind != "zip":
        raise UserError(f"{path}: is {'a ' + kind + ' file' if kind.isalpha() else kind}, expected {EXPORTED_FILE}")
    with open_zip(path, EXPORTED_FILE) as archive:
        check_members(path, archive)
        members = members_without_root(archive)
        try:
            _refuse_other_members(archive, members)
            return _network(archive, members, memory)
        except UserError as error:
            raise UserError(f"{path}: {error.message}", hint=error.hint) from error
        except DAMAGE as error:
            message = f"is damaged, or not what torch.export writes ({type(error).__name__}: {str(error)[:120]})"
            raise UserError(f"{path}: {message}", hint=REEXPORT) from error


def _refuse_other_members(archive: zipfile.ZipFile, members: Mapping[str, str]) -> None:
    if "constants.pkl" in members or "data.pkl" in members:
        raise UserError(f"is a torch.save or TorchScript file, expected {EXPORTED_FILE}")
    if "serialized_exported_program.json" in members or f"{WEIGHTS}model.pt" in members:
        raise UserError("is a torch.export file of an older format, which contains pickles", hint=REEXPORT)
    strange = [name for name in members if not MEMBERS.fullmatch(name)]
    if strange:
        raise UserError(f"has the unknown member '{strange[0]}', expected {EXPORTED_FILE}", hint=REEXPORT)
    if GRAPH not in members:
        raise UserError(f"has no {GRAPH}, expected {EXPORTED_FILE}", hint=REEXPORT)
    if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
        raise UserError("was written on a big-endian machine, expected little-endian", hint=REEXPORT)


def _network(archive: zipfile.ZipFile, members: Mapping[str, str], memory: int) -> nn.Module:
    program = parse_json(archive.read(members[GRAPH]).decode())
    major = program["schema_version"]["major"]
    if major != SCHEMA_MAJOR:
        raise UserError(f"is of schema version {major}, expected {SCHEMA_MAJOR}", hint=REEXPORT)
    module, graph = program["graph_module"], program["graph_module"]["graph"]
    tensors = _read_tensors(archive, members, WEIGHTS, "model_weights_config.json", memory)
    constant_tensors = _read_tensors(archive, members, CONSTANTS, "model_constants_config.json", memory)
    stored, constants, inputs = _graph_inputs(module["signature"]["input_specs"], graph["tensor_values"])
    used = {name: (tensors | constant_tensors)[name] for name in stored.values()}
    steps = _graph_steps(graph["nodes"], {*stored, *constants, *inputs}, set(stored))
    output = _single_output(module["signature"]["output_specs"])
    steps = _free_early(steps, output, set(stored))
    signature = GraphSignature(stored, set(constant_tensors), constants, inputs, output)
    network = AtenGraph(used, steps, signature, memory)
    if all(sizes := [_example_shape(graph["tensor_values"][name]["sizes"]) for name in inputs]):
        dtypes = [SCALAR_TYPES[graph["tensor_values"][name]["dtype"]] for name in inputs]
        for n_rows, with_gradients in ((1, False), (SAMPLE_ROWS, True)):  # the first pass takes that many
            shapes = [(n_rows, *size[1:]) for size in sizes]
            rows = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in zip(shapes, dtypes, strict=True)]
            network.check_shapes(dict(zip(inputs, rows, strict=True)), memory, with_gradients)
    return network.eval()


def _example_shape(sizes: list[dict[str, Any]]) -> list[int]:
    """One row, with the sizes at export on free axes; [] if one of them is not known."""
    hints = [size if "as_int" in size else size["as_expr"].get("hint") for size in sizes[1:]]
    known = all(hint and "as_int" in hint for hint in hints)
    return [1, *(_size(hint) for hint in hints)] if known else []


def _read_tensors(
    archive: zipfile.ZipFile, members: Mapping[str, str], folder: str, config: str, memory: int
) -> dict[str, Tensor]:
    read: dict[str, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    held = 0
    for name, entry in parse_json(archive.read(members[folder + config]).decode())["config"].items():
        if entry["use_pickle"] or entry["tensor_meta"] is None or not re.fullmatch(r"\w+_\d+", entry["path_name"]):
            raise UserError(f"stores '{name}' as a pickle, which would run code; expected a plain tensor")
        identity = json.dumps(entry, sort_keys=True)  # tied tensors have the same entry and stay one tensor
        if identity not in read:
            data = archive.read(members[folder + entry["path_name"]])
            held += len(data)  # one member may be named by many entries
            refuse_above(memory, held, "its tensors need")
            read[identity] = _tensor(name, data, entry)
        tensors[name] = read[identity]
    return tensors


def _tensor(name: str, data: bytes, entry: Mapping[str, Any]) -> Tensor:
    meta = entry["tensor_meta"]
    dtype = SCALAR_TYPES[meta["dtype"]]
    if dtype in (torch.float16, torch.bfloat16):
        raise UserError(f"stores '{name}' as {dtype}, expected float32 or float64", hint="export model.float()")
    shape, strides = [_size(s) for s in meta["sizes"]], [_size(s) for s in meta["strides"]]
    offset, stored = _size(meta["storage_offset"]), len(data) // dtype.itemsize
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if math.prod(shape) == 0:
        tensor = torch.empty(shape, dtype=dtype)
    elif last >= stored or math.prod(shape) > stored:
        raise UserError(f"'{name}' {tuple(shape)} needs more than the {format_bytes(len(data))} stored for it")
    else:
        flat = torch.frombuffer(bytearray(data), dtype=dtype, count=stored)
        tensor = flat.as_strided(shape, strides, offset).contiguous()
    return nn.Parameter(tensor, requires_grad=bool(meta["requires_grad"])) if entry["is_param"] else tensor


def _graph_inputs(
    specs: list[dict[str, Any]], metas: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any], dict[str, tuple[int | None, ...]]]:
    """Stored tensors (graph name → exported name), constants by graph name, and the shapes of the caller's inputs."""
    stored: dict[str, str] = {}
    constants: dict[str, Any] = {}
    inputs: dict[str, tuple[int | None, ...]] = {}
    for spec in specs:
        ((kind, content),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            stored[_text(content["arg"]["name"])] = _text(content[f"{kind}_name"])
        elif kind == "user_input" and "as_tensor" in content["arg"]:
            name = _text(content["arg"]["as_tensor"]["name"])
            shape = tuple(_size(entry) if "as_int" in entry else None for entry in metas[name]["sizes"])
            if not shape or shape[0] is not None:
                fixed = f"a fixed batch size of {shape[0]}" if shape else "no batch dimension"
                raise UserError(f"input '{name}' was exported with {fixed}, expected a free one", hint=DYNAMIC)
            inputs[name] = shape
        elif kind == "constant_input":
            constants[_text(content["name"])] = _argument(content["value"], set())
        else:
            raise UserError(f"has an input of kind '{kind}', expected parameters, buffers and input tensors")
    if not inputs:
        raise UserError("takes no input tensor")
    return stored, constants, inputs


def _single_output(specs: list[dict[str, Any]]) -> str:
    if any("user_output" not in spec for spec in specs):
        raise UserError("changes its buffers while it runs", hint="call model.eval() before exporting it")
    if len(specs) != 1 or "as_tensor" not in specs[0]["user_output"]["arg"]:
        raise UserError(f"returns {len(specs)} values, expected one tensor", hint="export a model that returns f(x)")
    return _text(specs[0]["user_output"]["arg"]["as_tensor"]["name"])


def _graph_steps(nodes: list[dict[str, Any]], known: set[str], stored: set[str]) -> list[GraphStep]:
    """The nodes as steps; `known` are the names defined so far."""
    steps = []
    for node in nodes:
        target = _text(node["target"])
        function = find_function(target)
        arguments = [(_text(i["name"]), _argument(i["arg"], known), i.get("kind")) for i in node["inputs"]]
        _refuse_training(target, arguments, stored)
        args = tuple(value for _, value, kind in arguments if kind == 1)
        kwargs = {name: value for name, value, kind in arguments if kind != 1}
        results, unpack = _results(node["outputs"])
        for result in filter(None, results):
            if result in known:
                raise UserError(f"uses the name {result[:40]!r} twice")
            known.add(result)
        steps.append(GraphStep(function, args, kwargs, results, unpack))
    return steps


def _refuse_training(target: str, arguments: list[tuple[str, Any, Any]], stored: set[str]) -> None:
    name = target.split(".")[-2]
    training = any(argument == TRAINING_FLAG.get(name) and value is True for argument, value, _ in arguments)
    changed = arguments[0][1] if arguments and name.endswith("_") else None
    if training or (isinstance(changed, Ref) and changed.name in stored):
        hint = "call model.eval() before exporting it"
        raise UserError(f"was exported in training mode ({name} changes or randomises values)", hint=hint)


def _results(outputs: list[dict[str, Any]]) -> tuple[tuple[str, ...], bool]:
    names: list[Any] = []
    for output in outputs:
        ((kind, content),) = output.items()
        if kind in ("as_tensor", "as_tensors"):
            names += [item["name"] for item in (content if kind == "as_tensors" else [content])]
        elif kind in SYMBOLIC:
            names.append(content["as_name"])
        elif kind == "as_none":
            names.append("")  # no result, or an unused one
        else:
            raise UserError(f"has a node with an output of kind '{kind}', which is not supported")
    several = len(outputs) > 1 or any("as_tensors" in output for output in outputs)
    return tuple(map(_text, names)) or ("",), several


def _argument(argument: dict[str, Any], known: set[str]) -> Any:
    ((kind, value),) = argument.items()
    if kind in PLAIN:
        if not isinstance(value, PLAIN[kind]):
            raise UserError(f"has the argument {str(value)[:40]!r} where {kind} is declared")
        return _plain(value)
    if kind not in READERS:
        raise UserError(f"has an argument of kind '{kind}', which is not supported", hint="use build: {import: …}")
    return READERS[kind](value, known)


def _plain(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, (float, str)) or is_whole_number(item) for item in items):
        raise UserError(f"has the argument {str(value)[:40]!r}, expected plain numbers")
    return value


def _symbolic(value: dict[str, Any], known: set[str]) -> Any:
    ((kind, content),) = value.items()
    return _known(content, known) if kind == "as_name" else _plain(content)


READERS: dict[str, Callable[[Any, set[str]], Any]] = {
    "as_none": lambda value, known: None,
    "as_tensor": lambda value, known: _known(value["name"], known),
    "as_tensors": lambda value, known: [_known(item["name"], known) for item in value],
    "as_optional_tensor": lambda value, known: _argument(value, known),
    "as_optional_tensors": lambda value, known: [_argument(item, known) for item in value],
    **dict.fromkeys(SYMBOLIC, _symbolic),
    **dict.fromkeys((f"{kind}s" for kind in SYMBOLIC), lambda value, known: [_symbolic(item, known) for item in value]),
    "as_scalar_type": lambda value, known: SCALAR_TYPES[value],
    "as_memory_format": lambda value, known: MEMORY_FORMATS[value],
    "as_device": lambda value, known: InputDevice(),
    "as_layout": lambda value, known: torch.strided,
}


def _known(name: Any, known: set[str]) -> Ref:
    if name not in known:
        raise UserError(f"uses the value {str(name)[:40]!r} before it is defined")
    return Ref(name)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a name, found {str(value)[:40]!r}")
    return value


def _free_early(steps: list[GraphStep], output: str, stored: set[str]) -> list[GraphStep]:
    """Let each step release the values that no later step needs."""
    needed = {output, *stored}
    freed: list[GraphStep] = []
    for step in reversed(steps):
        touched = {*references((step.args, step.kwargs)), *step.results}
        freed.append(replace(step, last_use_of=tuple(sorted(touched - needed))))
        needed |= touched
    return freed[::-1]


def _size(value: Mapping[str, Any]) -> int:
    number = value["as_int"]
    if type(number) is not int or number < 0:
        raise ValueError(f"size {number!r}")
    return number
