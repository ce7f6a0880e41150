"""Spec → network: weights that fit or a full list of what does not; the user's code only if allowed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import nn

from sublaplace_cli.architectures.cifar_resnet import cifar_resnet
from sublaplace_cli.architectures.mlp import mlp
from sublaplace_cli.errors import UserError
from sublaplace_cli.files.networks.loading import Network, NetworkSource, load_network
from sublaplace_cli.files.spec.models import BuildSpec

MLP = {"in": 3, "hidden": [4], "out": 2}


def build(**options: Any) -> SimpleNamespace:
    kinds = dict.fromkeys(("arch", "import_", "exported", "huggingface"))
    return SimpleNamespace(**{**kinds, "args": {}, **options})


def weights(path: str = "m.pt", **options: Any) -> SimpleNamespace:
    defaults = {"key": None, "strip_prefix": None, "rename": {}, "prefix": None, "strict": True}
    return SimpleNamespace(path=path, **{**defaults, **options})


def load(
    folder: Path,
    how: Any,
    state: Any = None,
    wrap: Any = None,
    allow_code: Sequence[str] = (),
    weights_path: Path | None = None,
    trainable: tuple[str, ...] | None = None,
) -> Network:
    part = SimpleNamespace(build=how, weights=state, wrap=wrap, trainable=trainable)
    source = NetworkSource(lambda value, _: folder / value, allow_code, folder, memory=1 << 28)
    return load_network(part, source, field="model", weights_path=weights_path)


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return mlp(**MLP).state_dict()


def save(folder: Path, content: Any, name: str = "m.pt") -> None:
    torch.save(content, folder / name)


def load_mlp(folder: Path, **options: Any) -> Network:
    return load(folder, build(arch="mlp", args=MLP), weights(**options))


def test_weights_arrive(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    save(tmp_path, state)
    before = torch.get_rng_state()
    found = load_mlp(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert found.files == (tmp_path / "m.pt",)
    assert not found.module.training
    assert all(torch.equal(v, state[k]) for k, v in found.module.state_dict().items())
    assert all(p.requires_grad and p.device.type == "cpu" for p in found.module.parameters())


def test_checkpoint_option_replaces_the_path(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    save(tmp_path, {"deep": {"er": state}}, "other.pt")
    what = build(arch="mlp", args=MLP)
    found = load(tmp_path, what, weights(key="deep.er"), weights_path=tmp_path / "other.pt")
    assert found.files == (tmp_path / "other.pt",)
    save(tmp_path, state, "flat.pt")
    assert load(tmp_path, what, weights_path=tmp_path / "flat.pt").files == (tmp_path / "flat.pt",)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "_orig_mod.module.", "model._orig_mod."])
def test_common_prefixes_are_dropped_where_needed(tmp_path: Path, state: dict[str, torch.Tensor], prefix: str) -> None:
    content = {"state_dict": {prefix + k: v for k, v in state.items()}, "pytorch-lightning_version": "2.0"}
    save(tmp_path, content)
    assert torch.equal(load_mlp(tmp_path).module.state_dict()["0.weight"], state["0.weight"])


def test_a_checkpoint_without_tensors(tmp_path: Path) -> None:
    safetensors.torch.save_file({}, tmp_path / "m.safetensors")
    with pytest.raises(UserError, match=r"missing: 0.weight \(4, 3\)"):
        load_mlp(tmp_path, path="m.safetensors")


def test_a_prefix_that_belongs_to_the_model_stays(tmp_path: Path) -> None:
    (tmp_path / "prefixed_net.py").write_text(
        "import torch\ndef make():\n    return torch.nn.ModuleDict({'model': torch.nn.Linear(2, 1)})\n"
    )
    save(tmp_path, {"model.weight": torch.full((1, 2), 7.0), "model.bias": torch.zeros(1)})
    found = load(tmp_path, build(import_="prefixed_net:make"), weights(), allow_code=["prefixed_net"])
    assert found.module.state_dict()["model.weight"].sum() == 14


def test_everything_that_does_not_fit_is_listed(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    state["9.weight"] = torch.ones(5)
    state["0.weight"] = torch.ones(4, 7)
    del state["2.bias"]
    save(tmp_path, state)
    with pytest.raises(UserError) as caught:
        load_mlp(tmp_path)
    for words in (
        "missing: 2.bias (2)",
        "unexpected: 9.weight (5)",
        "wrong shape: 0.weight (4, 7), expected (4, 3)",
    ):
        assert words in str(caught.value)
    with torch.device("cpu"):
        save(tmp_path, cifar_resnet(depth=32).state_dict())
    with pytest.raises(UserError, match=r"\.\.\. and \d+ more"):
        load(tmp_path, build(arch="cifar_resnet", args={"depth": 20}), weights())


def test_prefix_on_some_keys_is_suggested(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    save(tmp_path, {**{f"net.inner.{k}": v for k, v in state.items()}, "loss": torch.ones(1)})
    with pytest.raises(UserError, match=r"strip_prefix: net.inner."):
        load_mlp(tmp_path)
    load_mlp(tmp_path, strip_prefix="net.inner.", strict=False)


def test_not_strict_never_excuses_a_missing_parameter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = cifar_resnet(depth=20).state_dict()
    what = build(arch="cifar_resnet", args={"depth": 20})
    fewer = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    save(tmp_path, fewer)
    load(tmp_path, what, weights())
    without_means = {k: v for k, v in fewer.items() if not k.endswith("running_mean")}
    save(tmp_path, {**without_means, "extra": torch.ones(1)})
    with pytest.raises(UserError, match=r"bn1.running_mean"):
        load(tmp_path, what, weights())
    found = load(tmp_path, what, weights(strict=False)).module
    assert not found.state_dict()["bn1.running_mean"].any()
    save(tmp_path, {k: v for k, v in state.items() if k != "conv1.weight"})
    with pytest.raises(UserError, match=r"missing: conv1.weight \(16, 3, 3, 3\)"):
        load(tmp_path, what, weights(strict=False))


def test_values(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    for dtype, expected in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64,) * 2,
    ):
        save(tmp_path, {k: v.to(dtype) for k, v in state.items()})
        assert {p.dtype for p in load_mlp(tmp_path).module.parameters()} == {expected}
    save(tmp_path, {**state, "0.bias": torch.ones(4, dtype=torch.int64)})
    with pytest.raises(UserError, match=r"'0.bias' holds torch.int64"):
        load_mlp(tmp_path)
    save(tmp_path, {**state, "2.bias": torch.tensor([1.0, float("nan")])})
    with pytest.raises(UserError, match=r"'2.bias' has 1 values"):
        load_mlp(tmp_path)


def test_giants_are_refused_before_they_are_built(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    save(tmp_path, state)
    what = build(arch="mlp", args={"in": 1_000_000, "hidden": [1_000_000]})
    with pytest.raises(UserError, match=r"3.6 TiB, more than the allowed memory"):
        load(tmp_path, what, weights())


def test_architecture_errors(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    save(tmp_path, state)
    with pytest.raises(ValidationError, match=r"did you mean 'mlp'"):
        BuildSpec(arch="mpl")
    with pytest.raises(UserError, match=r"model.build.args: architecture 'mlp' needs"):
        load(tmp_path, build(arch="mlp"), weights())
    with pytest.raises(UserError, match=r"model.weights: missing"):
        load(tmp_path, build(arch="mlp", args=MLP))


def test_wrap(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    save(tmp_path, state)
    what = build(arch="mlp", args=MLP)
    wrap = SimpleNamespace(binary_logodds=SimpleNamespace(classes=[1]))
    found = load(tmp_path, what, weights(), wrap).module
    assert found(torch.ones(5, 3)).shape == (5, 1)
    assert list(found.state_dict()) == list(state)
    wrap.binary_logodds.classes = [2]
    with pytest.raises(UserError, match=r"there is no class 2,"):
        load(tmp_path, what, weights(), wrap)


def test_exported_with_weights_over_it(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    program = torch.export.export(mlp(**MLP), (torch.randn(2, 3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "m.pt2")
    alone = load(tmp_path, build(exported="m.pt2"))
    assert alone.files == (tmp_path / "m.pt2",)
    safetensors.torch.save_file(state, tmp_path / "w.safetensors")
    both = load(tmp_path, build(exported="m.pt2"), weights("w.safetensors"))
    assert both.files == (tmp_path / "m.pt2", tmp_path / "w.safetensors")
    reference = mlp(**MLP)
    reference.load_state_dict(state)
    torch.testing.assert_close(both.module(torch.ones(4, 3)), reference(torch.ones(4, 3)))


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "userpkg").mkdir()
    (tmp_path / "userpkg" / "__init__.py").write_text("")
    (tmp_path / "userpkg" / "nets.py").write_text(
        "import torch\n"
        "class Tied(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = torch.nn.Linear(2, 2, bias=False); self.b = torch.nn.Linear(2, 2, bias=False)\n"
        "        self.b.weight = self.a.weight\n"
        "def tied():\n    return Tied()\n"
        "def frozen(width=2):\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Linear(width, 1))\n"
        "    net[0].requires_grad_(False)\n"
        "    return net\n"
        "def number():\n    return 7\n"
        "def broken():\n    raise ValueError('no luck')\n"
    )
    (tmp_path / "userpkg" / "lacking.py").write_text("import no_such_dependency\n")
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "userpkg"]:
        del sys.modules[name]


def test_import_needs_permission(package: Path) -> None:
    for allowed in ((), ("otherpkg",), ("userpkg.nets",)):
        with pytest.raises(UserError, match=r"--allow-code userpkg(.|\n)*SUBLAPLACE_ALLOW_CODE"):
            load(package, build(import_="userpkg.nets:frozen"), allow_code=allowed)
    assert "userpkg" not in sys.modules


def test_import(package: Path) -> None:
    path = list(sys.path)
    found = load(package, build(import_="userpkg.nets:frozen", args={"width": 5}), allow_code=["userpkg"])
    assert [p.requires_grad for p in found.module.parameters()] == [False, False, True, True]
    assert [file.name for file in found.files] == ["__init__.py", "lacking.py", "nets.py"]
    assert sys.path == path
    save(package, found.module.state_dict())
    again = load(package, build(import_="userpkg.nets:frozen", args={"width": 5}), weights(), allow_code=["userpkg"])
    assert [p.requires_grad for p in again.module.parameters()] == [False, False, True, True]
    assert again.files[-1] == package / "m.pt"


def test_a_tied_weight_is_needed_once(package: Path) -> None:
    save(package, {"a.weight": torch.full((2, 2), 3.0)})
    found = load(package, build(import_="userpkg.nets:tied"), weights(), allow_code=["userpkg"]).module
    assert found.state_dict()["b.weight"].sum() == 12
    assert len(list(found.parameters())) == 1


@pytest.mark.parametrize(
    ("target", "args", "words"),
    [
        ("userpkg.nets", {}, "expected 'package.module:function'"),
        ("userpkg.nets:a b", {}, "expected 'package.module:function'"),
        ("userpkg.nest:frozen", {}, "no module 'userpkg.nest'"),
        ("userpkg.lacking:f", {}, "no_such_dependency"),
        ("userpkg.nets:frozn", {}, "did you mean 'frozen'"),
        ("userpkg.nets:number", {}, "returned a int, expected a torch.nn.Module"),
        ("userpkg.nets:broken", {}, "raised ValueError: no luck"),
        ("userpkg.nets:frozen", {"depth": 2}, "raised TypeError"),
    ],
)
def test_import_errors(package: Path, target: str, args: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(package, build(import_=target, args=args), allow_code=["userpkg"])


def test_modules_are_plain(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    save(tmp_path, state)
    assert type(load_mlp(tmp_path).module) is nn.Sequential
