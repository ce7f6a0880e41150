"""LoRA adapters: the logits of peft, only the adapter trainable, and errors for what is not a local LoRA."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft")
import peft
import transformers
from files.networks.test_huggingface import ROWS, load, refused, require_exact_jacobian
from huggingface_folders import SMALL, bert_config, change_json, seeded


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter with three outputs over a base network without a head, in the folder beside it."""
    seeded(transformers.BertModel, bert_config(**SMALL)).save_pretrained(tmp_path / "base")
    save_adapter(tmp_path)
    return tmp_path / "adapter"


def save_adapter(folder: Path, **settings: Any) -> Any:
    base = transformers.BertForSequenceClassification.from_pretrained(folder / "base", num_labels=3)
    config = peft.LoraConfig(**{"task_type": "SEQ_CLS", "r": 2, "lora_alpha": 8, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = peft.get_peft_model(base, config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(std=0.3)
    model.save_pretrained(folder / "adapter")
    change_json(folder / "adapter/adapter_config.json", base_model_name_or_path="../base")
    return model


@pytest.mark.parametrize(
    "settings", [{}, {"use_rslora": True, "target_modules": ["query", "dense"]}, {"modules_to_save": ["pooler"]}]
)
def test_logits_and_trainable_parameters(adapter: Path, settings: dict[str, Any]) -> None:
    original = save_adapter(adapter.parent, **settings)
    found = load(adapter)
    with torch.no_grad():
        torch.testing.assert_close(found.module(**ROWS), original(**ROWS).logits)
    trainable = [name for name, parameter in found.module.named_parameters() if parameter.requires_grad]
    expected = [name for name, parameter in original.named_parameters() if parameter.requires_grad]
    assert trainable == [name.removeprefix("base_model.model.") for name in expected]
    files = ["adapter_config.json", "config.json", "model.safetensors", "adapter_model.safetensors"]
    assert [path.name for path in found.files] == files


def test_gradients_of_an_adapter(adapter: Path) -> None:
    require_exact_jacobian(load(adapter).module.double(), ROWS)


def test_what_is_never_used_is_always_the_same(adapter: Path) -> None:
    one, two = (load(adapter).module.state_dict() for _ in range(2))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_other_weights_of_an_adapter(adapter: Path) -> None:
    expected = load(adapter).module(**ROWS)
    shutil.move(adapter / "adapter_model.safetensors", adapter.parent / "other.safetensors")
    torch.testing.assert_close(load(adapter, weights="other.safetensors").module(**ROWS), expected)
    refused(adapter, "has no weights", "adapter_model.safetensors")


def test_a_base_that_is_elsewhere(adapter: Path) -> None:
    expected = load(adapter).module(**ROWS)
    (adapter.parent / "base").rename(adapter.parent / "moved")
    refused(adapter, "'../base' is no local folder", "nothing is downloaded", "base: FOLDER")
    change_json(adapter / "adapter_config.json", base_model_name_or_path="google/bert")
    refused(adapter, "'google/bert' is no local folder")
    torch.testing.assert_close(load(adapter, base="moved").module(**ROWS), expected)
    change_json(adapter / "adapter_config.json", base_model_name_or_path=None)
    refused(adapter, "names no base network")
    change_json(adapter / "adapter_config.json", base_model_name_or_path="../../..")
    refused(adapter, "outside")


def test_a_base_key_without_an_adapter(adapter: Path) -> None:
    refused(adapter.parent / "base", "is no adapter", "remove base", base="adapter")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', expected LORA"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "the setting 'layer_replication' is not supported"),
        ({"bias": "all"}, "the setting 'bias' is not supported"),
        ({"something_new": 1}, "the setting 'something_new' is not supported"),
        ({"r": 10**9}, "r is 1000000000, expected at most"),
        ({"r": "many"}, "the adapter does not fit"),
        ({"target_modules": "(a+)+$" * 100}, "target_modules has the pattern"),
        ({"target_modules": "(a*)*$"}, "target_modules has the pattern"),
        ({"target_modules": ".*" * 9}, "target_modules has the pattern"),
        ({"modules_to_save": "classifier"}, "expected a list of names in modules_to_save"),
        ({"modules_to_save": [1]}, "expected a list of names in modules_to_save"),
        ({"base_model_name_or_path": "x" * 5000}, "is no local folder"),
        ({"base_model_name_or_path": "x\0"}, "is no local folder"),
        ({"base_model_name_or_path": ["x"]}, "names no base network"),
        ({"target_modules": ["no_such_layer"]}, "the adapter does not fit"),
        ({"target_modules": ["query", "key", "value"]}, "missing: bert.encoder.layer.0.attention.self.key.lora_A"),
        ({"target_modules": ["query"]}, "unexpected: bert.encoder.layer.0.attention.self.value.lora_A"),
        ({"r": 4}, "has the shape (2, 8), expected (4, 8)"),
        ({"modules_to_save": ["score"]}, "missing: classifier.bias, classifier.weight"),
    ],
)
def test_settings_that_are_refused(adapter: Path, changes: dict[str, Any], expected: str) -> None:
    change_json(adapter / "adapter_config.json", **changes)
    refused(adapter, expected)


def test_a_base_of_another_width(adapter: Path) -> None:
    wide = {**SMALL, "hidden_size": 16}
    seeded(transformers.BertModel, bert_config(**wide)).save_pretrained(adapter.parent / "base")
    refused(adapter, "its tensors do not fit the base network BertForSequenceClassification")
