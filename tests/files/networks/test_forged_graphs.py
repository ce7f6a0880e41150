"""Forged exported graphs: refused before an operator reads foreign memory, fills the memory or never ends."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.networks.argument_checks import ARGUMENT_CHECKS
from sublaplace_cli.files.networks.aten_operators import ATEN
from sublaplace_cli.files.networks.exported import load_exported

MEMORY, GRAPH = 1 << 26, "models/model.json"
Node = dict[str, Any]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolution, normalisation and a linear layer, exported with a free batch dimension and decomposed."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 2))
    rows = ({0: Dim.DYNAMIC},)
    program = export(nn.Sequential(*layers).eval(), (torch.randn(4, 1, 6, 6),), dynamic_shapes=rows)
    path = tmp_path_factory.mktemp("exported") / "m.pt2"
    torch.export.save(program.run_decompositions(), path)
    return path


def forge(source: Path, target: Path, member: str, change: Callable[[Any], None]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith(member):
                content = json.loads(data)
                change(content)
                data = json.dumps(content).encode()
            new.writestr(info.filename, data)
    return target


def tensor(name: str) -> Node:
    return {"as_tensor": {"name": name}}


def ints(*values: int) -> Node:
    return {"as_ints": list(values)}


def call(target: str, *arguments: Node, output: Node, **named: Node) -> Node:
    inputs = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]
    inputs += [{"name": name, "arg": argument, "kind": 2} for name, argument in named.items()]
    return {
        "target": target,
        "inputs": inputs,
        "outputs": [output],
        "metadata": {},
        "is_hop_single_tensor_return": None,
    }


def load_with(exported: Path, folder: Path, *nodes: Node, memory: int = MEMORY, replaces: str = "") -> nn.Module:
    """The network with these nodes before the others (they may read `x`, the input), or instead of an operator."""

    def edit(program: Any) -> None:
        found = program["graph_module"]["graph"]["nodes"]
        kept = [node for node in found if not replaces or replaces not in node["target"]]
        named = json.loads(json.dumps(nodes).replace('"x"', json.dumps(input_name(program))))
        found[:] = [*named, *kept]

    return load_exported(forge(exported, folder / "forged.pt2", GRAPH, edit), memory=memory)


def input_name(program: Any) -> str:
    specs = program["graph_module"]["signature"]["input_specs"]
    return next(spec["user_input"]["arg"]["as_tensor"]["name"] for spec in specs if "user_input" in spec)


@pytest.mark.parametrize("operator", ["_native_batch_norm_legit_no_training", "_batch_norm_no_update"])
@pytest.mark.parametrize("statistic", ["running_mean", "running_var", "weight", "bias"])
def test_statistics_of_another_length(exported: Path, tmp_path: Path, operator: str, statistic: str) -> None:
    def edit(program: Any) -> None:
        node = next(n for n in program["graph_module"]["graph"]["nodes"] if "batch_norm" in n["target"])
        node["target"] = f"torch.ops.aten.{operator}.default"
        if operator == "_batch_norm_no_update":
            node["outputs"].append(tensor("reserve"))

    whole = forge(exported, tmp_path / "whole.pt2", GRAPH, edit)
    x = torch.randn(3, 1, 6, 6)
    torch.testing.assert_close(load_exported(whole, memory=MEMORY)(x), load_exported(exported, memory=MEMORY)(x))

    def shorten(config: Any) -> None:
        config["config"][f"1.{statistic}"]["tensor_meta"]["sizes"] = [{"as_int": 1}]

    short = forge(whole, tmp_path / "short.pt2", "model_weights_config.json", shorten)
    with pytest.raises(UserError, match=rf"short.pt2: .*{statistic} has the shape \(1,\) for 8 channels"):
        load_exported(short, memory=MEMORY)


def test_statistics_that_depend_on_the_number_of_rows(exported: Path, tmp_path: Path) -> None:
    """With one row all shapes fit; with more, the kernel would read behind the end of the statistics."""
    flat = call("torch.ops.aten.reshape.default", tensor("x"), ints(1, -1, 36), output=tensor("flat"))
    means = call("torch.ops.aten.ones.default", ints(1), output=tensor("ones"))
    arguments = [tensor("flat"), {"as_none": True}, {"as_none": True}, tensor("ones"), tensor("ones")]
    norm = call("torch.ops.aten._native_batch_norm_legit_no_training.default", *arguments, output=tensor("n"))
    for argument in (0.1, 1e-5):
        norm["inputs"].append({"name": "", "arg": {"as_float": argument}, "kind": 1})
    norm["outputs"] += [tensor("n1"), tensor("n2")]
    with pytest.raises(UserError, match=r"running_mean has the shape \(1,\) for 8 channels"):
        load_with(exported, tmp_path, flat, means, norm)


@pytest.mark.parametrize(
    "nodes",
    [
        [call("torch.ops.aten.zeros.default", ints(10**9), output=tensor("z"))],
        [call("torch.ops.aten.full.default", ints(10**9), {"as_float": 1.0}, output=tensor("z"))],
        [call("torch.ops.aten.arange.default", {"as_int": 10**9}, output=tensor("z"))],
        [call("torch.ops.aten.repeat.default", tensor("x"), ints(10**7, 1, 1, 1), output=tensor("z"))],
        [call("torch.ops.aten.constant_pad_nd.default", tensor("x"), ints(10**8, 0), output=tensor("z"))],
        [  # inside of an operator: 5000 x 5000 elements
            call("torch.ops.aten.ones.default", ints(5000), output=tensor("z")),
            call(
                "torch.ops.aten.einsum.default",
                {"as_string": "a,b,a,b->"},
                {"as_tensors": [{"name": "z"}] * 4},
                output=tensor("y"),
            ),
        ],
        [  # each one is small, but all are needed at the end
            *(call("torch.ops.aten.ones.default", ints(10**6), output=tensor(f"z{i}")) for i in range(20)),
            call(
                "torch.ops.aten.stack.default",
                {"as_tensors": [{"name": f"z{i}"} for i in range(20)]},
                output=tensor("y"),
            ),
        ],
    ],
    ids=["zeros", "full", "arange", "repeat", "pad", "einsum", "sum of results"],
)
def test_results_beyond_the_memory_limit(exported: Path, tmp_path: Path, nodes: list[Node]) -> None:
    with pytest.raises(UserError, match=r"forged.pt2: .*more than the allowed memory \(64.0 MiB\)\n.*--memory"):
        load_with(exported, tmp_path, *nodes)


def test_results_that_grow_with_a_power_of_the_rows(exported: Path, tmp_path: Path) -> None:
    size = call("torch.ops.aten.sym_size.int", tensor("x"), {"as_int": 0}, output={"as_sym_int": {"as_name": "s"}})
    rows = {"as_sym_ints": [{"as_name": "s"}] * 5}
    network = load_with(exported, tmp_path, size, call("torch.ops.aten.zeros.default", rows, output=tensor("z")))
    assert network(torch.randn(2, 1, 6, 6)).shape == (2, 2)
    with pytest.raises(UserError, match=r"--memory"):
        network(torch.randn(128, 1, 6, 6))


def test_released_results_do_not_count(exported: Path, tmp_path: Path) -> None:
    sizes = [call("torch.ops.aten.ones.default", ints(10**6), output=tensor(f"z{i}")) for i in range(20)]
    assert load_with(exported, tmp_path, *sizes)(torch.randn(2, 1, 6, 6)).shape == (2, 2)


def test_more_pieces_than_possible(exported: Path, tmp_path: Path) -> None:
    small = call("torch.ops.aten.ones.default", ints(1), output=tensor("a"))
    long = call("torch.ops.aten.expand.default", tensor("a"), ints(10**7), output=tensor("b"))
    names = {"as_tensors": [{"name": "c"}]}
    for node in (
        call("torch.ops.aten.split.Tensor", tensor("b"), {"as_int": 1}, output=names),
        call("torch.ops.aten.unbind.int", tensor("b"), output=names),
        call("torch.ops.aten.chunk.default", tensor("b"), {"as_int": 10**7}, output=names),
    ):
        with pytest.raises(UserError, match=r"10000000 pieces"):
            load_with(exported, tmp_path, small, long, node)


def test_integers_stay_within_64_bits(exported: Path, tmp_path: Path) -> None:
    def squared(i: int) -> Node:
        last = {"as_sym_int": {"as_name": f"s{i}"} if i else {"as_int": 7}}
        return call("_operator.mul", last, last, output={"as_sym_int": {"as_name": f"s{i + 1}"}})

    start = time.monotonic()
    with pytest.raises(UserError, match=r"64 bits"):
        load_with(exported, tmp_path, *map(squared, range(60)))
    with pytest.raises(UserError, match=r"plain numbers"):
        load_with(exported, tmp_path, call("torch.ops.aten.zeros.default", ints(2**63), output=tensor("z")))
    assert time.monotonic() - start < 10
    division = call("_operator.floordiv", {"as_int": 1}, {"as_int": 0}, output={"as_sym_int": {"as_name": "s"}})
    with pytest.raises(UserError, match=r"ZeroDivisionError"):
        load_with(exported, tmp_path, division)


def test_every_flipped_byte_is_explained(exported: Path, tmp_path: Path) -> None:
    path, whole = tmp_path / "m.pt2", exported.read_bytes()
    with zipfile.ZipFile(exported) as archive:
        start = next(info.header_offset for info in archive.infolist() if info.filename.endswith("byteorder"))
    refused = 0
    for position in (*range(0, len(whole), len(whole) // 400), *range(start, start + 200)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x15]) + whole[position + 1 :])
        try:  # any other exception fails the test; bytes that nothing reads may change
            load_exported(path, memory=MEMORY)
        except UserError:
            refused += 1
    assert refused > 100


def ones(name: str, *sizes: int, **named: Node) -> Node:
    return call("torch.ops.aten.ones.default", ints(*sizes), output=tensor(name), **named)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            [
                *(ones(name, 2, 2, length, 16) for name, length in (("q", 8), ("k", 4000), ("v", 5))),
                call("torch.ops.aten.scaled_dot_product_attention.default", *map(tensor, "qkv"), output=tensor("a")),
            ],
            "4000 keys and 5 values",
        ),
        (
            [
                ones("r", 2, dtype={"as_scalar_type": 5}),
                call(
                    "torch.ops.aten.repeat_interleave.Tensor",
                    tensor("r"),
                    output=tensor("a"),
                    output_size={"as_int": 2},
                ),
            ],
            "a tensor of repeats",
        ),
        (
            [
                call("torch.ops.aten.full.default", ints(4), {"as_int": -(2**63)}, output=tensor("n")),
                ones("d", 4, dtype={"as_scalar_type": 5}),
                call(
                    "torch.ops.aten.div.Tensor_mode",
                    *map(tensor, "nd"),
                    output=tensor("a"),
                    rounding_mode={"as_string": "trunc"},
                ),
            ],
            "integers are divided by a tensor",
        ),
        (
            [
                ones("p", 1, 1, 4, 4),
                call(
                    "torch.ops.aten.upsample_nearest2d.default",
                    tensor("p"),
                    ints(8, 8),
                    {"as_float": 1e-300},
                    output=tensor("a"),
                ),
            ],
            "scale 1e-300",
        ),
    ],
    ids=["attention", "repeats", "division", "scale"],
)
def test_arguments_that_a_kernel_trusts(exported: Path, tmp_path: Path, nodes: list[Node], words: str) -> None:
    with pytest.raises(UserError, match=rf"forged.pt2: .*{words}"):
        load_with(exported, tmp_path, *nodes)


def test_statistics_of_the_norm_cannot_be_used(exported: Path, tmp_path: Path) -> None:
    """Without values they have one entry per channel, on the CPU none."""

    def edit(program: Any) -> None:
        nodes = program["graph_module"]["graph"]["nodes"]
        at, norm = next((i, n) for i, n in enumerate(nodes) if "batch_norm" in n["target"])
        again = json.loads(json.dumps(norm))
        again["outputs"] = [tensor(f"again{i}") for i in range(3)]
        for argument in again["inputs"]:
            if argument["name"] == "running_mean":
                argument["arg"] = norm["outputs"][1]
        nodes.insert(at + 1, again)

    with pytest.raises(UserError):
        load_exported(forge(exported, tmp_path / "m.pt2", GRAPH, edit), memory=MEMORY)


def test_each_check_belongs_to_an_allowed_operator() -> None:
    assert set(ARGUMENT_CHECKS) <= ATEN


@pytest.mark.parametrize("change", ["logical_not_", "mul_"])
def test_a_view_does_not_change_stored_tensors(exported: Path, tmp_path: Path, change: str) -> None:
    def edit(program: Any) -> None:
        found = program["graph_module"]["graph"]["nodes"]
        weight = program["graph_module"]["signature"]["input_specs"][0]["parameter"]["arg"]["name"]
        view = call("torch.ops.aten.detach.default", tensor(weight), output=tensor("seen"))
        arguments = [tensor("seen"), *([{"as_float": 2.0}] if change == "mul_" else [])]
        overload = "Scalar" if change == "mul_" else "default"
        found[:0] = [view, call(f"torch.ops.aten.{change}.{overload}", *arguments, output=tensor("changed"))]

    with pytest.raises(UserError, match="changes a stored tensor"):
        load_exported(forge(exported, tmp_path / "forged.pt2", GRAPH, edit), memory=MEMORY)


def test_results_that_gradients_keep(exported: Path, tmp_path: Path) -> None:
    """Each is small and released at once in a forward pass, but a backward pass needs them all."""
    nodes = [call("torch.ops.aten.ones.default", ints(2**20), output=tensor("s0"))]
    for i in range(200):
        nodes.append(call("torch.ops.aten.sin.default", tensor(f"s{i}"), output=tensor(f"s{i + 1}")))
    with pytest.raises(UserError, match="more than the allowed memory"):
        load_with(exported, tmp_path, *nodes)


def test_a_member_that_many_entries_name(exported: Path, tmp_path: Path) -> None:
    def edit(config: Any) -> None:
        largest = config["config"]["4.weight"]  # 1 kB
        for i in range(4000):
            config["config"][f"more{i}"] = {**largest, "number": i}

    path = forge(exported, tmp_path / "forged.pt2", "model_weights_config.json", edit)
    with pytest.raises(UserError, match=r"its tensors need .* more than the allowed memory"):
        load_exported(path, memory=MEMORY // 32)


def test_padding_around_the_edges_with_negative_amounts(exported: Path, tmp_path: Path) -> None:
    pad = call("torch.ops.aten.pad.default", tensor("x"), ints(-5, 5), output=tensor("padded"))
    pad["inputs"].append({"name": "mode", "arg": {"as_string": "circular"}, "kind": 1})
    with pytest.raises(UserError, match="negative amounts"):
        load_with(exported, tmp_path, pad)


def test_patches_of_a_large_kernel(exported: Path, tmp_path: Path) -> None:
    """In float64 the kernel writes out every patch: a small image and a large kernel need gigabytes."""
    nodes = [
        call("torch.ops.aten.ones.default", ints(1, 1, 256, 256), output=tensor("image"), dtype={"as_scalar_type": 8}),
        call("torch.ops.aten.ones.default", ints(1, 1, 150, 150), output=tensor("kernel"), dtype={"as_scalar_type": 8}),
        call("torch.ops.aten.conv2d.default", tensor("image"), tensor("kernel"), output=tensor("result")),
    ]
    with pytest.raises(UserError, match=r"the patches of a convolution need 1\.9 GiB"):
        load_with(exported, tmp_path, *nodes)


def test_a_name_with_many_levels(exported: Path, tmp_path: Path) -> None:
    def rename(content: Any) -> None:
        text = json.dumps(content).replace('"0.weight"', json.dumps("a." * 5000 + "weight"))
        content.clear()
        content.update(json.loads(text))

    once = forge(exported, tmp_path / "once.pt2", GRAPH, rename)
    with pytest.raises(UserError, match="nested deeper than 50 levels"):
        load_exported(forge(once, tmp_path / "twice.pt2", "model_weights_config.json", rename), memory=MEMORY)


def test_a_graph_of_millions_of_empty_mappings(exported: Path, tmp_path: Path) -> None:
    def edit(program: Any) -> None:
        program["more"] = [{}] * 2**20

    with pytest.raises(UserError, match="more than 1048576 lists and mappings"):
        load_exported(forge(exported, tmp_path / "forged.pt2", GRAPH, edit), memory=MEMORY)
