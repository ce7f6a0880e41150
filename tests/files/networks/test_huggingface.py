"""Networks from Hugging Face folders: the logits of transformers, and one clear error for each folder that is wrong."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from torch import Tensor, nn

from sublaplace_cli.core.jacobian.capture import prepare_capture, pulled_by_name
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.errors import UserError
from sublaplace_cli.files.networks.loading import Network, NetworkSource, load_network
from sublaplace_cli.files.spec.models import BuildSpec, ModelSpec, WeightsSpec

pytest.importorskip("transformers")
import transformers
from huggingface_folders import SMALL, bert_config, change_json, save_bert, seeded

MEMORY = 1 << 28
ROWS = {
    "input_ids": torch.tensor([[2, 5, 6, 7, 3, 0], [2, 9, 3, 0, 0, 0], [2, 5, 11, 12, 13, 3]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1] * 6]),
}


def load(folder: Path, *, weights: str | None = None, memory: int = MEMORY, **build: Any) -> Network:
    def resolve(value: str, field: str) -> Path:
        path = folder.parent / value
        if not path.resolve().is_relative_to(folder.parent.resolve()):
            raise UserError(f"{field}: {path} is outside")
        return path

    part = ModelSpec(
        build=BuildSpec(huggingface=folder.name, **build),
        weights=None if weights is None else WeightsSpec(path=weights),
    )
    return load_network(part, NetworkSource(resolve, (), folder.parent, memory), field="model")


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    save_bert(tmp_path / "bert", **SMALL)
    return tmp_path / "bert"


class ByRows(nn.Module):
    """Takes the rows as one argument, as the reference calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: dict[str, Tensor]) -> Tensor:
        return self.model(**rows)


def require_exact_jacobian(network: nn.Module, rows: dict[str, Tensor]) -> None:
    """The blocks of the fast path against one autograd call per row and output, in float64."""
    layout = Layout.of(network)
    capture = prepare_capture(network, layout, rows, MEMORY)
    assert capture.batched, capture.notes
    captured = capture(rows)
    f, J = reference.jacobian(ByRows(network), rows, len(captured.f))
    torch.testing.assert_close(captured.f, f, rtol=1e-12, atol=1e-12)
    for i in range(len(f)):
        u = torch.randn(1, f.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(i))
        found = pulled_by_name(captured.some_rows([i]).blocks, u, layout)
        flat = torch.cat([found[parameter.name] for parameter in layout.parameters])
        torch.testing.assert_close(flat, (u @ J[i]).squeeze(0), rtol=1e-9, atol=1e-11)


def text_rows(model: Any) -> dict[str, Tensor]:
    return ROWS


def pixel_rows(model: Any) -> dict[str, Tensor]:
    size = getattr(model.config, "image_size", 32)
    return {"pixel_values": torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))}


GPT = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 10, "bos_token_id": 0, "eos_token_id": 0}
TOKENS = {"vocab_size": 21, "pad_token_id": 0}
LLAMA = {**SMALL, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 1}
ALBERT = {**SMALL, "embedding_size": 4, "num_hidden_layers": 2, "max_position_embeddings": 10}
VIT = {**SMALL, "image_size": 8, "patch_size": 4}
CONV = {"hidden_sizes": [4, 6], "depths": [1, 1], "num_stages": 2}
NETWORKS: list[tuple[str, dict[str, Any], Callable[[Any], dict[str, Tensor]]]] = [
    ("BertForSequenceClassification", {**TOKENS, **SMALL, "max_position_embeddings": 10}, text_rows),
    ("DistilBertForSequenceClassification", {**TOKENS, "dim": 8, "n_layers": 1, "n_heads": 2}, text_rows),
    ("AlbertForSequenceClassification", {**TOKENS, **ALBERT}, text_rows),  # one layer used twice: no formula
    ("GPT2ForSequenceClassification", {**TOKENS, **GPT}, text_rows),  # layers of its own
    ("LlamaForSequenceClassification", {**TOKENS, **LLAMA}, text_rows),  # rounds to float32 inside
    ("ViTForImageClassification", VIT, pixel_rows),  # saved under other names
    ("ConvNextForImageClassification", CONV, pixel_rows),
]


@pytest.mark.parametrize(("name", "sizes", "rows_of"), NETWORKS, ids=[name for name, *_ in NETWORKS])
def test_logits_and_gradients(tmp_path: Path, name: str, sizes: dict[str, Any], rows_of: Any) -> None:
    kind = getattr(transformers, name)
    original = seeded(kind, kind.config_class(**sizes, num_labels=3))
    original.save_pretrained(tmp_path / "net")
    loaded = load(tmp_path / "net").module
    rows = rows_of(original)
    with torch.no_grad():
        torch.testing.assert_close(loaded(**rows), original(**rows).logits)
    names = [name for name, _ in original.named_parameters()]
    assert [name for name, _ in loaded.named_parameters()] == names
    wide = {n: t.double() if t.is_floating_point() else t for n, t in rows.items()}
    require_exact_jacobian(loaded.double(), wide)


def test_what_a_tokenizer_gives_and_the_network_does_not_take(tmp_path: Path) -> None:
    kind = transformers.DistilBertForSequenceClassification
    seeded(kind, kind.config_class(**TOKENS, dim=8, n_layers=1, n_heads=2)).save_pretrained(tmp_path / "net")
    network = load(tmp_path / "net").module
    torch.testing.assert_close(network(**ROWS, token_type_ids=ROWS["input_ids"] * 0), network(**ROWS))
    with pytest.raises(UserError, match="takes no input 'pixels'"):
        network(**ROWS, pixels=ROWS["input_ids"])
    with pytest.raises(UserError, match="takes no input 'labels'"):
        network(**ROWS, labels=ROWS["input_ids"])


def test_the_main_input_needs_no_name(bert: Path) -> None:
    network = load(bert).module
    torch.testing.assert_close(network(ROWS["input_ids"]), network(input_ids=ROWS["input_ids"]))
    with pytest.raises(UserError, match="takes its inputs by name"):
        network(ROWS["input_ids"], ROWS["attention_mask"])


def test_weights_in_several_files_are_read_together(tmp_path: Path) -> None:
    original = save_bert(tmp_path / "whole", **SMALL)
    original.save_pretrained(tmp_path / "parts", max_shard_size="2KB")
    found = load(tmp_path / "parts")
    assert len(found.files) > 4
    assert {path.name for path in found.files} >= {"config.json", "model.safetensors.index.json"}
    torch.testing.assert_close(found.module(**ROWS), original(**ROWS).logits)


def test_a_file_of_torch_save_is_read_too(bert: Path) -> None:
    expected = load(bert).module(**ROWS)
    state = load(bert).module.state_dict()
    (bert / "model.safetensors").unlink()
    torch.save(state, bert / "pytorch_model.bin")
    torch.testing.assert_close(load(bert).module(**ROWS), expected)


def test_other_weights_replace_those_of_the_folder(bert: Path) -> None:
    other = seeded(transformers.BertForSequenceClassification, bert_config(**SMALL), seed=1)
    torch.save({f"module.{name}": tensor for name, tensor in other.state_dict().items()}, bert.parent / "other.pt")
    found = load(bert, weights="other.pt")
    torch.testing.assert_close(found.module(**ROWS), other(**ROWS).logits)
    assert [path.name for path in found.files] == ["config.json", "other.pt"]


def test_a_float64_file_makes_the_network_float64(bert: Path) -> None:
    other = seeded(transformers.BertForSequenceClassification, bert_config(**SMALL), seed=1)
    other.double().save_pretrained(bert)
    network = load(bert).module
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float64}
    torch.testing.assert_close(network(**ROWS), other(**ROWS).logits, rtol=1e-12, atol=1e-12)


def test_the_callers_random_numbers_stay(bert: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load(bert)
    assert torch.equal(torch.rand(3), expected)


def refused(folder: Path, *words: str, **options: Any) -> None:
    with pytest.raises(UserError) as caught:
        load(folder, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_network_without_a_trained_head(tmp_path: Path) -> None:
    body = seeded(transformers.BertModel, bert_config(**SMALL))
    body.save_pretrained(tmp_path / "body")
    network = load(tmp_path / "body").module
    with pytest.raises(UserError, match="BertModel has no logits: it has no head"):
        network(**ROWS)
    change_json(tmp_path / "body/config.json", architectures=["BertForSequenceClassification"])
    refused(tmp_path / "body", "missing: classifier.bias, classifier.weight", "random values")


@pytest.mark.parametrize("name", ["BertForTokenClassification", "BertForMaskedLM"])
def test_outputs_per_token(tmp_path: Path, name: str) -> None:
    seeded(getattr(transformers, name), bert_config(**SMALL)).save_pretrained(tmp_path / "net")
    network = load(tmp_path / "net").module
    with pytest.raises(UserError, match=rf"{name} gives logits of shape \(3, 6, \d+\), expected one row"):
        network(**ROWS)


CONFIGS = [
    ({"architectures": ["NoSuchNetwork"]}, "'NoSuchNetwork' is no network of transformers"),
    ({"architectures": ["os"]}, "'os' is no network of transformers"),
    ({"architectures": ["AutoModel"]}, "'AutoModel' is no network of transformers"),
    ({"architectures": ["PreTrainedModel"]}, "model_type is 'bert'"),
    ({"architectures": ["RobertaForSequenceClassification"]}, "model_type is 'bert'"),
    ({"architectures": None}, "expected architectures: [NAME]"),
    ({"architectures": ["A", "B"]}, "expected architectures: [NAME]"),
    ({"auto_map": {"AutoModel": "evil.Net"}}, "auto_map names code, which is refused"),
    ({"quantization_config": {"bits": 4}}, "the weights are quantised"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most"),
    ({"num_hidden_layers": 9000}, "far more than its weights"),
    ({"num_labels": 10**9}, "num_labels is 1000000000, expected at most"),
    ({"vocab_size": 10**12}, "BertForSequenceClassification needs"),
    ({"hidden_size": "large"}, "is not a configuration of BertForSequenceClassification"),
    ({"hidden_size": 16}, "wrong shape: bert.embeddings.LayerNorm.bias (8), expected (16)"),
    ({"hidden_size": 9}, "BertForSequenceClassification cannot be built"),
    ({"num_labels": 5}, "wrong shape: classifier.bias (2), expected (5), classifier.weight (2, 8), expected (5, 8)"),
    ({"num_hidden_layers": 2}, "missing: bert.encoder.layer.1."),
    ({"num_hidden_layers": 0}, "unexpected: bert.encoder.layer.0."),
]


@pytest.mark.parametrize(("changes", "expected"), CONFIGS, ids=[expected for _, expected in CONFIGS])
def test_configurations_that_are_refused(bert: Path, changes: dict[str, Any], expected: str) -> None:
    change_json(bert / "config.json", **changes)
    refused(bert, expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[1]", "holds a list, expected an object"),
        ("{", "not a readable JSON file"),
        ("[" * 100_000, "not a readable JSON file"),
        ('{"a": "' + "x" * 5_000_000 + '"}', "larger than"),
    ],
)
def test_a_configuration_that_is_no_small_object(bert: Path, content: str, expected: str) -> None:
    (bert / "config.json").write_text(content)
    refused(bert, "config.json", expected)


def test_a_folder_without_its_files(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    refused(bert, "has no weights", "model.safetensors or pytorch_model.bin")
    (bert / "config.json").unlink()
    refused(bert, "has no config.json", "save_pretrained")
    shutil.rmtree(bert)
    refused(bert, "model.build.huggingface", "is missing", "nothing is downloaded")
    bert.write_text("")
    refused(bert, "is not a folder")


def test_the_attention_that_a_configuration_names_is_not_fetched(bert: Path) -> None:
    expected = load(bert).module(**ROWS)
    change_json(bert / "config.json", _attn_implementation="someone/kernel", attn_implementation="someone/kernel")
    torch.testing.assert_close(load(bert).module(**ROWS), expected)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ""])
def test_an_index_that_leads_out_of_the_folder(bert: Path, name: str) -> None:
    shutil.copy(bert / "model.safetensors", bert.parent / "other.safetensors")
    (bert / "model.safetensors").unlink()
    (bert / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    refused(bert, "model.safetensors.index.json: names the file", "expected a file of the same folder")


def test_other_indices(bert: Path) -> None:
    shutil.move(bert / "model.safetensors", bert / "one.safetensors")
    index = bert / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "none.safetensors"}}))
    refused(bert, "'none.safetensors', which is not there")
    index.write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    refused(bert, "which is not there")
    index.write_text(json.dumps({"weight_map": ["one.safetensors"]}))
    refused(bert, "expected a weight_map")
    shutil.copy(bert / "one.safetensors", bert / "two.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    refused(bert, "two.safetensors: the tensor", "is in another file too")


def test_a_link_out_of_the_allowed_folder(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "model.safetensors"
    shutil.move(bert / "model.safetensors", elsewhere)
    (bert / "model.safetensors").symlink_to(elsewhere)
    refused(bert, "is outside")


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("was-run",)


def test_a_pickle_that_would_run_code(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bert)
    (bert / "model.safetensors").unlink()
    torch.save({"a": torch.ones(2), "b": Evil()}, bert / "pytorch_model.bin")
    refused(bert, "pytorch_model.bin", "would run code")
    (bert / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    refused(bert, "pytorch_model.bin", "plain pickle")
    assert not (bert / "was-run").exists()


def test_weights_that_are_not_finite(bert: Path) -> None:
    network = seeded(transformers.BertForSequenceClassification, bert_config(**SMALL))
    with torch.no_grad():
        network.classifier.bias[0] = torch.nan
    network.save_pretrained(bert)
    refused(bert, "'classifier.bias' has values that are NaN or infinite")
