"""torch.export files: the same network comes back, and nothing in a forged file runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.func import functional_call, jacrev, vmap

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.networks.exported import load_exported

MEMORY, GRAPH = 1 << 28, "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Net(nn.Module):
    """Convolution, BatchNorm, in-place ReLU, tied and frozen parameters, attention, a constant, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.a = nn.Linear(4 * 16, 8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.again = self.tied.weight
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("scale", torch.full((8,), 1.5))
        self.c = nn.Linear(8, 3)
        self.a.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.bn(self.conv(x)).relu_().view(x.shape[0], -1)
        h = torch.tanh(self.a(h)) * self.scale + torch.tensor([0.5])
        h = self.norm(self.drop(self.tied(h))) @ self.again
        h = h.unsqueeze(1)
        return self.c(self.attention(h, h, h)[0][:, 0] + torch.arange(8, device=h.device))


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def save(path: Path, module: nn.Module, x: torch.Tensor, *, free: bool = True) -> Path:
    program = export(module, (x,), dynamic_shapes=({0: Dim.DYNAMIC},) if free else None)
    torch.export.save(program, path)
    return path


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return save(tmp_path / "m.pt2", nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(2, 3))


def forge(path: Path, member: str, change: Callable[[Any], Any]) -> Path:
    """Rewrite one member (JSON: in place or anew) and leave the rest as it is."""
    with zipfile.ZipFile(path) as old:
        members = {info.filename: old.read(info) for info in old.infolist()}
    full = next((name for name in members if name.endswith("/" + member)), f"m/{member}")
    if member.endswith(".json"):
        content = json.loads(members[full])
        members[full] = json.dumps(change(content) or content).encode()
    else:
        members[full] = change(members.get(full))
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)
    return path


def test_same_names_flags_outputs_and_jacobians(tmp_path: Path) -> None:
    original, x = net(), torch.randn(4, 1, 6, 6)
    loaded = load_exported(save(tmp_path / "m.pt2", original, x), memory=MEMORY)
    assert [n for n, _ in loaded.named_parameters()] == [n for n, _ in original.named_parameters()]
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in original.parameters()]
    assert set(loaded.state_dict()) == set(original.state_dict())
    for rows in (x, x[:1], x.repeat(3, 1, 1, 1)):
        torch.testing.assert_close(loaded(rows), original(rows))

    def jacobians(module: nn.Module) -> dict[str, torch.Tensor]:
        one = jacrev(lambda p, row: functional_call(module, p, (row[None],))[0])
        return vmap(one, (None, 0))(dict(module.named_parameters()), x)

    for found, expected in zip(jacobians(loaded).values(), jacobians(original).values(), strict=True):
        torch.testing.assert_close(found, expected)


def test_decomposed_programs_run_too(tmp_path: Path) -> None:
    original, x = net(), torch.randn(4, 1, 6, 6)
    program = export(original, (x,), dynamic_shapes=({0: Dim.DYNAMIC},)).run_decompositions()
    torch.export.save(program, tmp_path / "m.pt2")
    torch.testing.assert_close(load_exported(tmp_path / "m.pt2", memory=MEMORY)(x), original(x))


def test_a_bias_that_is_computed_stays(tmp_path: Path) -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2, bias=False)
            self.shift = nn.Parameter(torch.randn(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.inner.weight, self.shift * 2)

    original, x = Computed(), torch.randn(4, 3)
    loaded = load_exported(save(tmp_path / "m.pt2", original, x), memory=MEMORY)
    torch.testing.assert_close(loaded(x), original(x))


def test_a_stored_mask_selects_columns(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, False, True]))
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x[:, self.mask])

    original, x = Masked(), torch.randn(4, 3)
    loaded = load_exported(save(tmp_path / "m.pt2", original, x), memory=MEMORY)
    assert torch.equal(loaded(x), original(x))
    loaded.load_state_dict({**original.state_dict(), "mask": torch.tensor([True, True, True])})
    with pytest.raises(UserError, match=r"fails for an input of shape \(4, 3\)"):
        loaded(x)


def test_modes_dtypes_and_hooks(linear: Path) -> None:
    loaded = load_exported(linear, memory=MEMORY)
    assert loaded.eval() is loaded
    assert loaded.train() is loaded
    assert loaded.double()(torch.randn(5, 3, dtype=torch.float64)).dtype == torch.float64
    layers = [m for m in loaded.modules() if isinstance(m, nn.Linear)]  # as layers, so that capture can see them
    assert [(m.in_features, m.out_features) for m in layers] == [(3, 4), (4, 2)]
    seen: list[torch.Size] = []
    layers[1].register_forward_hook(lambda m, i, o: seen.append(o.shape))
    loaded(torch.randn(5, 3, dtype=torch.float64))
    assert seen == [(5, 2)]


def test_wrong_input_shape(linear: Path) -> None:
    loaded = load_exported(linear, memory=MEMORY)
    with pytest.raises(UserError, match=r"found shape \(2, 5\), expected \(any, 3\)"):
        loaded(torch.randn(2, 5))
    with pytest.raises(UserError, match=r"takes 1 inputs"):
        loaded()


def test_fixed_batch_and_training_mode_say_how_to_export(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"fixed batch size of 2(.|\n)*dynamic_shapes"):
        load_exported(save(tmp_path / "m.pt2", nn.Linear(3, 1), torch.ones(2, 3), free=False), memory=MEMORY)
    for module in (nn.Dropout(0.5), nn.BatchNorm1d(3)):
        with pytest.raises(UserError, match=r"model.eval\(\)"):
            load_exported(save(tmp_path / "m.pt2", module.train(), torch.randn(4, 3)), memory=MEMORY)


def test_half_precision_and_memory(tmp_path: Path, linear: Path) -> None:
    half = save(tmp_path / "h.pt2", nn.Linear(3, 1).bfloat16(), torch.ones(2, 3, dtype=torch.bfloat16))
    with pytest.raises(UserError, match=r"model.float\(\)"):
        load_exported(half, memory=MEMORY)
    with pytest.raises(UserError, match=r"--memory"):
        load_exported(linear, memory=100)


def test_other_files(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "m.pt2")
    with pytest.raises(UserError, match=r"torch.save"):
        load_exported(tmp_path / "m.pt2", memory=MEMORY)
    (tmp_path / "m.pt2").write_bytes(b"hello")
    with pytest.raises(UserError, match=r"unknown kind"):
        load_exported(tmp_path / "m.pt2", memory=MEMORY)


def test_legacy_and_compiled_members_are_refused(linear: Path) -> None:
    original = linear.read_bytes()
    for member, words in (
        ("data/weights/model.pt", "older format"),
        ("data/aotinductor/model/a.so", "unknown"),
    ):
        linear.write_bytes(original)
        with pytest.raises(UserError, match=words):
            load_exported(forge(linear, member, lambda _: b"x"), memory=MEMORY)


class Trap(str):  # makes a folder when it is unpickled
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self),))


def node(program: dict[str, Any]) -> dict[str, Any]:
    return next(n for n in program["graph_module"]["graph"]["nodes"] if "tanh" in n["target"])


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.os.mkdir",
        "_operator.methodcaller",
        "torch.ops.aten.from_file.default",
        "math.exp",
    ]
    + [
        "torch.ops.aten.__class__.default",
        "torch.ops.aten.add.__call__",
        "torch.ops.load_library",
        "torch.load",
    ]
    + [
        "torch.ops.aten.tanh.out",
        "torch.ops.higher_order.cond",
        "#x:y",
        "torch.ops.aten.rand.default",
        "",
        "a.b",
    ],
)
def test_forged_targets_never_run(linear: Path, tmp_path: Path, target: str) -> None:
    def edit(program: Any) -> None:
        argument = {"name": "", "arg": {"as_string": str(tmp_path / "ran")}, "kind": 1}
        node(program).update(target=target, inputs=[argument])

    with pytest.raises(UserError, match=r"which is not allowed in an exported file"):
        load_exported(forge(linear, GRAPH, edit), memory=MEMORY)
    assert not (tmp_path / "ran").exists()


def test_expressions_guards_and_names_are_never_evaluated(linear: Path, tmp_path: Path) -> None:
    code = f"__import__('os').mkdir({str(tmp_path / 'ran')!r})"

    def edit(program: Any) -> None:
        graph = program["graph_module"]["graph"]
        program["guards_code"] = [code]
        graph["tensor_values"]["input"]["sizes"][0] = {"as_expr": {"expr_str": code, "hint": None}}
        program["range_constraints"] = {code: {"min_val": 2, "max_val": None}}
        program["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"] = [f"x={code}"]
        node(program)["metadata"]["stack_trace"] = f"\n{code}"

    forge(linear, GRAPH, edit)
    # a node's own name, which torch would print into generated source
    forge(linear, GRAPH, lambda p: json.loads(json.dumps(p).replace('"tanh"', json.dumps(f"y={code}"))))
    loaded = load_exported(linear, memory=MEMORY)
    assert loaded(torch.randn(4, 3)).shape == (4, 2)
    assert not (tmp_path / "ran").exists()


def test_pickles_are_never_opened(linear: Path, tmp_path: Path) -> None:
    trap = pickle.dumps(Trap(tmp_path / "ran"))
    buffer = io.BytesIO()
    torch.save(Trap(tmp_path / "ran"), buffer)
    forge(linear, "data/sample_inputs/model.pt", lambda _: buffer.getvalue())
    load_exported(linear, memory=MEMORY)  # sample inputs are ignored

    original = linear.read_bytes()

    def pickled(config: Any) -> None:
        entry = next(iter(config["config"].values()))
        entry["use_pickle"] = True

    forge(linear, "data/weights/weight_0", lambda _: buffer.getvalue())
    with pytest.raises(UserError, match=r"as a pickle"):
        load_exported(forge(linear, WEIGHTS, pickled), memory=MEMORY)

    linear.write_bytes(original)
    custom = {"path_name": "custom_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    forge(linear, CONSTANTS, lambda config: config["config"].update(c=custom))
    with pytest.raises(UserError, match=r"as a pickle"):
        load_exported(linear, memory=MEMORY)
    forge(linear, "data/constants/custom_obj_0", lambda _: trap)
    with pytest.raises(UserError, match=r"unknown member"):
        load_exported(linear, memory=MEMORY)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("sizes", [1 << 40, 1 << 20]), ("storage_offset", 1 << 40), ("strides", [0, 0]), ("sizes", [-1, 3])]
    + [("strides", [1 << 62, 1]), ("sizes", [4, 3, 1]), ("dtype", 99), ("dtype", "7")],
)
def test_forged_sizes_take_no_memory(linear: Path, field: str, value: Any) -> None:
    def edit(config: Any) -> None:
        meta = config["config"]["0.weight"]["tensor_meta"]
        wrapped = [{"as_int": v} for v in value] if isinstance(value, list) else {"as_int": value}
        meta[field] = value if field == "dtype" else wrapped
        if field == "strides" and value == [0, 0]:
            meta["sizes"] = [{"as_int": 1 << 20}, {"as_int": 1 << 20}]

    with pytest.raises(UserError):
        load_exported(forge(linear, WEIGHTS, edit), memory=MEMORY)


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: p.update(schema_version={"major": 99, "minor": 0}),
        lambda p: p.update(graph_module=None),
        lambda p: node(p).update(outputs=[{"as_custom_obj": {}}]),
        lambda p: node(p).update(inputs=[{"name": "self", "arg": {"as_tensor": {"name": "nobody"}}, "kind": 1}]),
        lambda p: node(p).update(inputs=[{"name": "self", "arg": {"as_graph": {}}, "kind": 1}]),
        lambda p: node(p).update(inputs=[{"name": "self", "arg": {"as_int": "7"}, "kind": 1}]),
        lambda p: node(p).update(inputs=[{"name": "self", "arg": {"as_sym_ints": [{}]}, "kind": 1}]),
        lambda p: node(p).update(inputs=7),
        lambda p: node(p).update(target=None),
        lambda p: p["graph_module"]["signature"].update(output_specs=[]),
        lambda p: p["graph_module"]["signature"].update(input_specs=[]),
        lambda p: p["graph_module"]["signature"]["input_specs"][0]["parameter"].update(parameter_name="forward"),
    ],
)
def test_forged_structures_are_explained(linear: Path, edit: Callable[[Any], Any]) -> None:
    with pytest.raises(UserError, match=str(linear)):
        load_exported(forge(linear, GRAPH, edit), memory=MEMORY)
