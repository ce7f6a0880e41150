"""Names of a checkpoint become those of the network: prefixes, `rename`, and the mapping that an error suggests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml
from pydantic import ValidationError
from torch import nn

from sublaplace_cli.architectures.cifar_resnet import cifar_resnet
from sublaplace_cli.architectures.mlp import mlp
from sublaplace_cli.errors import UserError
from sublaplace_cli.files.networks.loading import NetworkSource, load_network
from sublaplace_cli.files.networks.names import named_for, natural_order, suggested_rename
from sublaplace_cli.files.spec.models import ModelSpec, WeightsSpec

PATH = Path("m.pt")


def options(**own: Any) -> WeightsSpec:
    return WeightsSpec.model_validate({"path": "m.pt", **own})


def named(names: Iterable[str], expected: Iterable[str], **own: Any) -> dict[str, str]:
    """New name → name in the file."""
    state = {name: torch.full((1,), float(number)) for number, name in enumerate(names)}
    found = named_for(dict.fromkeys(expected, torch.zeros(1)), state, PATH, options(**own))
    return {new: list(state)[int(tensor)] for new, tensor in found.items()}


def test_strip_and_rename() -> None:
    file, expected = ["net.fc.weight", "net.fc.bias"], ["a.weight", "a.bias"]
    truth = {"a.weight": "net.fc.weight", "a.bias": "net.fc.bias"}
    for prefix in ("net.", "net"):
        assert named(file, expected, strip_prefix=prefix, rename={"fc.": "a."}) == truth
    assert named(file, expected, rename={"net.fc.weight": "a.weight", "net.fc.bias": "a.bias"}) == truth
    with pytest.raises(UserError, match=r"no key starts with strip_prefix 'nett.'"):
        named(file, expected, strip_prefix="nett.")
    with pytest.raises(UserError, match=r"rename 'fc' matches no key"):
        named(file, expected, rename={"fc": "a"})
    with pytest.raises(UserError, match=r"two keys have the name 'x'"):
        named(file, expected, rename={"net.fc.weight": "x", "net.fc.bias": "x"})


def test_strip_prefix_may_not_merge_keys() -> None:
    with pytest.raises(UserError, match=r"two keys have the name 'w'"):
        named(["m.w", "w"], ["w"], strip_prefix="m.")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model._orig_mod.", "module.backbone."])
def test_rename_reads_names_with_and_without_a_known_prefix(prefix: str) -> None:
    file, expected = [f"{prefix}fc1.weight", f"{prefix}fc2.weight"], ["0.weight", "2.weight"]
    truth = dict(zip(expected, file, strict=True))
    assert named(file, expected, rename={"fc1.": "0.", "fc2.": "2."}) == truth
    assert named(file, expected, rename={f"{prefix}fc1.": "0.", f"{prefix}fc2.": "2."}) == truth
    assert named(file, expected, rename={f"{prefix}fc1.": f"{prefix}0.", f"{prefix}fc2.": f"{prefix}2."}) == truth


def test_names_as_in_the_file_come_first() -> None:
    file = ["model.model.a", "model.b"]
    assert named(file, ["x.model.a", "x.b"], rename={"model.": "x."}) == {"x.model.a": file[0], "x.b": file[1]}
    with pytest.raises(UserError) as caught:
        named(file, ["b"], rename={"model.b": "b", "a": "x"})
    assert "rename 'a' matches no key" in str(caught.value)
    assert caught.value.hint == "the keys are model.model.a, model.b; without a known prefix: model.a, b"


def test_stars() -> None:
    file = ["enc.layers.0.att.q.weight", "enc.layers.11.att.k.weight", "enc.norm.weight"]
    rename = {"enc.layers.*.att.*.": "blocks.*.self_*.", "enc.norm.weight": "norm.scale"}
    expected = ["blocks.0.self_q.weight", "blocks.11.self_k.weight", "norm.scale"]
    assert named(file, expected, rename=rename) == dict(zip(expected, file, strict=True))
    assert named(["a1b.w", "a.w", "aXXb.w.v"], [], rename={"a*b.w": "c*.w"}) == {
        "c1.w": "a1b.w",
        "a.w": "a.w",
        "aXXb.w.v": "aXXb.w.v",
    }


def test_a_star_is_a_part_of_one_character_or_more_without_a_dot() -> None:
    for pattern in ("a.*", "*.w", "a.*.w.*"):
        with pytest.raises(UserError, match=r"matches no key"):
            named(["a.b.w", "a."], [], rename={pattern: pattern})


def test_the_rule_with_the_most_literal_characters_wins() -> None:
    file = ["a.0.w", "a.1.w", "a.2.v"]
    rename = {"a.": "x.", "a.*.w": "y.*.w", "a.1.w": "z"}
    assert named(file, [], rename=rename) == {"y.0.w": "a.0.w", "z": "a.1.w", "x.2.v": "a.2.v"}
    with pytest.raises(UserError, match=r"'a.\*.b.' and 'a.b.\*.' match 'a.b.b.w' equally well"):
        named(["a.b.b.w"], [], rename={"a.*.b.": "x.*.", "a.b.*.": "y.*."})


@pytest.mark.parametrize(
    ("rename", "words"),
    [
        ({"a.*.": "b."}, "expected as many * in the new name as in the old one (1), got 0"),
        ({"a.": "b.*."}, "expected as many * in the new name as in the old one (0), got 1"),
        ({"a.*b*.": "*.*."}, "expected at most one * between two dots"),
    ],
)
def test_wrong_patterns(rename: dict[str, str], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        options(rename=rename)
    assert words in str(caught.value)


def test_a_long_name_takes_no_long_time() -> None:
    pattern = ".".join(["a*a"] * 200) + ".end"
    assert named(["b", ".".join(["a" * 400] * 200) + ".start"], [], rename={"b": "c"})["c"] == "b"
    with pytest.raises(UserError, match=r"matches no key"):
        named([".".join(["a" * 400] * 200) + ".start"], [], rename={pattern: pattern})


@pytest.mark.parametrize("known", ["", "module.", "model._orig_mod."])
def test_a_prefix_is_added(known: str) -> None:
    file, expected = [f"{known}fc.weight"], ["net.encoder.fc.weight"]
    assert named(file, expected, prefix="net.encoder.") == {expected[0]: file[0]}
    assert named(file, ["x.fd.weight"], prefix="x.", rename={"fc.": "fd."}) == {"x.fd.weight": file[0]}


def test_natural_order() -> None:
    assert sorted(["fc10", "fc2", "a"], key=natural_order) == ["a", "fc2", "fc10"]


class Named(nn.Module):
    """The layers of mlp(3, 4, 4, 2) under other names, registered in order."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.mid, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)


MLP = {"in": 3, "hidden": [4, 4], "out": 2}


def suggestion_of(folder: Path, name: str, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What the error of a checkpoint suggests for an mlp, as YAML reads it."""
    (torch.save if name.endswith(".pt") else safetensors.torch.save_file)(state, folder / name)
    with pytest.raises(UserError) as caught:
        load(folder, {"path": name})
    hint = caught.value.hint or ""
    assert hint.startswith("the shapes fit in this order; if the layers are the same ones: weights: {…, rename: {")
    return yaml.safe_load(hint.partition("{…, ")[2].removesuffix("}"))


def load(folder: Path, weights: dict[str, Any]) -> nn.Module:
    spec = ModelSpec.model_validate({"build": {"arch": "mlp", "args": MLP}, "weights": weights})
    source = NetworkSource(lambda value, _: folder / value, (), folder, memory=1 << 28)
    return load_network(spec, source, field="model").module


@pytest.mark.parametrize("known", ["", "module."])
def test_the_suggested_mapping_can_be_pasted(tmp_path: Path, known: str) -> None:
    torch.manual_seed(0)
    state = {known + name: tensor for name, tensor in Named().state_dict().items()}
    found = suggestion_of(tmp_path, "m.pt", state)
    assert found == {"rename": {f"{known}inp.": "0.", f"{known}mid.": "2.", f"{known}head.": "4."}}
    loaded = load(tmp_path, {"path": "m.pt", **found}).state_dict()
    for new, tensor in zip(mlp(**MLP).state_dict(), state.values(), strict=True):
        assert torch.equal(loaded[new], tensor)


def test_a_file_that_does_not_keep_the_order_is_read_by_the_numbers_of_its_layers(tmp_path: Path) -> None:
    state = {f"fc{i}.{part}": t for i, layer in enumerate(mlp(**MLP)[::2], 9) for part, t in layer.named_parameters()}
    found = suggestion_of(tmp_path, "m.safetensors", state)
    assert found == {"rename": {"fc9.": "0.", "fc10.": "2.", "fc11.": "4."}}
    load(tmp_path, {"path": "m.safetensors", **found})


def as_rules(suggested: str | None) -> dict[str, str] | None:
    return None if suggested is None else yaml.safe_load(suggested)["rename"]


def test_suggestions_are_short() -> None:
    own = cifar_resnet(depth=20).state_dict()
    assert as_rules(suggested_rename({f"encoder.{name}": t for name, t in own.items()}, own)) is not None
    other = {name.replace("layer", "stage").replace("conv", "c"): tensor for name, tensor in own.items()}
    short = as_rules(suggested_rename(other, own))
    assert short is not None
    assert len(short) < 20
    assert named(other, [], rename=short) == dict(zip(own, other, strict=True))
    deep = {f"h.{i}.{part}": torch.zeros(i + 1) for i in range(12) for part in ("weight", "bias")}
    blocks = {f"blocks.{name[2:]}": tensor for name, tensor in deep.items()}
    assert as_rules(suggested_rename(deep, blocks)) == {"h.": "blocks."}
    inner = {f"blocks.{name[2:].replace('.', '.fc.')}": tensor for name, tensor in deep.items()}
    assert as_rules(suggested_rename(deep, inner)) == {"h.*.": "blocks.*.fc."}


def test_tensors_with_other_names_are_mapped_one_by_one() -> None:
    own, other = ({n: torch.zeros(2) for n in names} for names in (("n.weight", "n.bias"), ("n.gamma", "n.beta")))
    assert as_rules(suggested_rename(other, own)) == {"n.gamma": "n.weight", "n.beta": "n.bias"}


def test_nothing_is_suggested_where_a_shape_differs(tmp_path: Path) -> None:
    state = {**Named().state_dict(), "mid.weight": torch.zeros(4, 5)}
    assert suggested_rename(state, mlp(**MLP).state_dict()) is None
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(UserError) as caught:
        load(tmp_path, {"path": "m.pt"})
    assert "rename: {" not in str(caught.value)


def test_nothing_is_suggested_beside_a_mapping(tmp_path: Path) -> None:
    torch.save(Named().state_dict(), tmp_path / "m.pt")
    for own in ({"rename": {"inp.": "1."}}, {"prefix": "x."}):
        with pytest.raises(UserError) as caught:
            load(tmp_path, {"path": "m.pt", **own})
        assert "rename: {" not in str(caught.value)


def test_counters_of_batch_norm_need_no_partner() -> None:
    own = nn.ModuleDict({"bn": nn.BatchNorm1d(3), "fc": nn.Linear(3, 1)}).state_dict()
    other = {name.replace("bn", "norm"): t for name, t in own.items() if not name.endswith("tracked")}
    assert as_rules(suggested_rename(other, own)) == {"norm.": "bn."}
