"""The JSON graph of a torch.export file → checked steps for `aten_graph`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ...errors import UserError
from .aten_graph import GraphStep, InputDevice, Ref, references
from .aten_operators import TRAINING_FLAG, find_function

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


def graph_inputs(
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
            shape = tuple(size(entry) if "as_int" in entry else None for entry in metas[name]["sizes"])
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


def single_output(specs: list[dict[str, Any]]) -> str:
    """The graph name of the one output tensor."""
    if any("user_output" not in spec for spec in specs):
        raise UserError("changes its buffers while it runs", hint="call model.eval() before exporting it")
    if len(specs) != 1 or "as_tensor" not in specs[0]["user_output"]["arg"]:
        raise UserError(f"returns {len(specs)} values, expected one tensor", hint="export a model that returns f(x)")
    return _text(specs[0]["user_output"]["arg"]["as_tensor"]["name"])


def graph_steps(nodes: list[dict[str, Any]], known: set[str], stored: set[str]) -> list[GraphStep]:
    """The nodes as steps; `known` are the names defined before the first one."""
    known = set(known)
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
    flag = TRAINING_FLAG.get(name)
    training = any(argument == flag and value is True for argument, value, _ in arguments)
    changed = arguments[0][1] if arguments and name.endswith("_") else None
    if training or (isinstance(changed, Ref) and changed.name in stored):
        hint = "call model.eval() before exporting it"
        raise UserError(f"was exported in training mode ({name} changes or randomises values)", hint=hint)


def _results(outputs: list[dict[str, Any]]) -> tuple[tuple[str, ...], bool]:
    names: list[str] = []
    several = len(outputs) > 1
    for output in outputs:
        ((kind, content),) = output.items()
        if kind == "as_tensors":
            names += [_text(item["name"]) for item in content]
            several = True
        elif kind == "as_tensor":
            names.append(_text(content["name"]))
        elif kind in SYMBOLIC:
            names.append(_text(content["as_name"]))
        elif kind == "as_none":
            names.append("")  # no result, or an unused one
        else:
            raise UserError(f"has a node with an output of kind '{kind}', which is not supported")
    return tuple(names) or ("",), several


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
    if not all(isinstance(item, (int, float, bool, str)) for item in items):
        raise UserError(f"has the argument {str(value)[:40]!r}, expected plain numbers")
    return value


def _symbolic(value: dict[str, Any], known: set[str]) -> Any:
    return _known(value["as_name"], known) if "as_name" in value else _plain(next(iter(value.values())))


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


def free_early(steps: list[GraphStep], output: str, stored: set[str]) -> list[GraphStep]:
    """Let each step release the values that no later step needs."""
    needed = {output, *stored}
    freed: list[GraphStep] = []
    for step in reversed(steps):
        touched = {*references((step.args, step.kwargs)), *step.results}
        freed.append(replace(step, last_use_of=tuple(sorted(touched - needed))))
        needed |= touched
    return freed[::-1]


def size(value: Mapping[str, Any]) -> int:
    """A whole number ≥ 0 in the file."""
    number = value["as_int"]
    if type(number) is not int or number < 0:
        raise ValueError(f"size {number!r}")
    return number
