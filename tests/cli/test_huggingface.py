"""Hugging Face folders on the command line: texts or arrays in, the numbers of the dense reference out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import reference
import torch
import yaml
from cli.cli_tools import Tool, contents
from files.data.test_arrow import write_dataset
from torch import Tensor, nn

from sublaplace_cli import run_command
from sublaplace_cli.commands.init import Wishes, start
from sublaplace_cli.errors import UserError, how_to_install

pytest.importorskip("transformers")
from huggingface_folders import (
    SMALL,
    bert_config,
    change_json,
    made_texts,
    save_bert,
    save_tokenizer,
    seeded,
    write_table,
)
from transformers import BertForSequenceClassification, BertModel

OWN_NETWORK = """
from torch import nn

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(21, 4), nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask, **unused):
        mask = attention_mask[..., None]
        return self.head((self.words(input_ids) * mask).sum(1) / mask.sum(1))

make = Bag
"""
SPEC = """\
version: 1
task: multiclass
model:
  build: {huggingface: bert}
data:
  format: csv
  path: texts.csv
  text: {column: text, max_length: 16}
  columns: {target: label}
  splits: {train: {rows: "0:40"}, test: {rows: "40:"}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a network, its tokenizer, 60 texts and the spec."""
    save_bert(tmp_path / "bert", **SMALL)
    save_tokenizer(tmp_path / "bert")
    write_table(tmp_path / "texts.csv", ["text", "label"], made_texts(60))
    (tmp_path / "sublaplace.yaml").write_text(SPEC)
    return tmp_path


def evaluated(folder: Path, change: Any = None, **options: Any) -> dict[str, Any]:
    """The result of the spec after a change, in this process."""
    spec = yaml.safe_load((folder / "sublaplace.yaml").read_text())
    if change is not None:
        change(spec)
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump(spec))
    return run_command("evaluate", **{"spec": path, "method": "gradient", "k": 100, "dtype": "float64", **options})


class Plain(nn.Module):
    """The network as transformers runs it, for the reference."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: dict[str, Tensor]) -> Tensor:
        return self.model(**rows).logits


def test_a_short_spec_without_code(tool: Tool, tmp_path: Path) -> None:
    save_bert(tmp_path / "bert")
    save_tokenizer(tmp_path / "bert")
    write_table(tmp_path / "texts.csv", ["text", "label"], made_texts(60))
    (tmp_path / "sublaplace.yaml").write_text(SPEC)
    assert SPEC.count("\n") <= 12
    result = tool("evaluate", "--method", "gradient", "--k", 100, "--json", cwd=tmp_path).json()
    assert [(row["method"], row["k"]) for row in result["rows"]] == [("gradient", 100)]
    assert result["n_params"] > 10_000
    assert 0 < result["rows"][0]["w2_relative"] < 1


def test_init_writes_a_spec_that_runs(tool: Tool, folder: Path) -> None:
    (folder / "sublaplace.yaml").unlink()
    started = tool("init", "bert", "texts.csv", cwd=folder)
    assert started.code == 0, started.err
    written = yaml.safe_load((folder / "sublaplace.yaml").read_text())
    assert written["task"] == "multiclass"  # 0 and 1, but the network has two outputs
    assert written["data"]["text"] == {"column": "text", "max_length": 16}  # the longest has 10 tokens
    result = run_command("evaluate", spec=folder / "sublaplace.yaml", method="gradient", k=100)
    assert result["rows"][0]["k"] == 100


def test_nobody_is_told_to_standardise_texts(tool: Tool, folder: Path) -> None:
    """Of a network with random weights, which is no better than a guess."""
    np.savez(folder / "ids.npz", ids=np.ones((20, 5), dtype=np.int64), y=np.arange(20) % 2)
    spec = yaml.safe_load((folder / "sublaplace.yaml").read_text())
    splits = {"train": {"rows": "0:15"}, "test": {"rows": "15:"}}
    arrays = {"format": "npz", "path": "ids.npz", "arrays": {"input": {"input_ids": "ids"}, "target": "y"}}
    texts = {**spec["data"], "splits": {"train": {"rows": "0:15"}, "test": {"rows": "40:"}}}
    with open(folder / "texts.csv", newline="") as file:
        lines = file.read().splitlines()
    (folder / "texts.csv").write_text("\n".join([lines[0], *(f"the film,{i % 2}" for i in range(60))]) + "\n")
    for data in (texts, {**arrays, "splits": splits}):
        (folder / "sublaplace.yaml").write_text(yaml.safe_dump({**spec, "data": data}))
        run = tool("evaluate", "--k", 20, cwd=folder)
        assert "its inputs were prepared in another way" in run.err, run.err
        assert "standardise" not in run.err


def test_init_with_texts_in_a_saved_data_set(tool: Tool, folder: Path) -> None:
    """As the datasets package saves them: texts and class numbers."""
    texts, labels = zip(*made_texts(60), strict=True)
    write_dataset(folder / "saved", pyarrow.table({"text": texts, "label": labels}))
    (folder / "sublaplace.yaml").unlink()
    assert tool("init", "bert", "saved", cwd=folder).code == 0
    written = yaml.safe_load((folder / "sublaplace.yaml").read_text())["data"]
    assert (written["format"], written["text"]) == ("arrow", {"column": "text", "max_length": 16})
    found = run_command("evaluate", spec=folder / "sublaplace.yaml", method="gradient", k=100)
    (folder / "sublaplace.yaml").unlink()
    assert tool("init", "bert", "texts.csv", cwd=folder).code == 0
    expected = run_command("evaluate", spec=folder / "sublaplace.yaml", method="gradient", k=100)
    assert found["rows"] == expected["rows"]


def test_the_numbers_are_those_of_the_dense_reference(folder: Path) -> None:
    model, tokenizer = save_bert(folder / "bert", **SMALL).double(), save_tokenizer(folder / "bert")
    texts, labels = zip(*made_texts(60), strict=True)
    rows = tokenizer(list(texts), padding="max_length", max_length=16, return_tensors="pt")
    train, test = ({name: t[part] for name, t in rows.items()} for part in (slice(40), slice(40, None)))
    f, J = reference.jacobian(Plain(model), train, 40)
    f_test, J_test = reference.jacobian(Plain(model), test, 20)
    H, prior = reference.output_hessian("multiclass", f, None), torch.ones(J.shape[2]).double()
    omega = reference.precision(J, H, prior)
    S = reference.gradient_selection(reference.data_term(J, H).diagonal(), prior, 100)
    result = evaluated(folder, method="gradient,full,map")
    found = {row["method"]: row for row in result["rows"]}
    for name, chosen in (("gradient", S), ("full", list(range(len(prior))))):
        std = reference.subnet_variance(J_test, omega, chosen).sqrt()
        assert found[name]["mean_std"] == pytest.approx(float(std.mean()), rel=1e-8)
    expected = reference.classification_metrics(
        "multiclass", torch.tensor(labels[40:]), f_test, torch.zeros(20, 2, 2).double()
    )
    assert found["map"]["nll"] == pytest.approx(expected["nll"], rel=1e-8)
    assert found["map"]["accuracy"] == expected["accuracy"]


def test_arrays_give_the_same_numbers_as_texts(folder: Path) -> None:
    texts, labels = zip(*made_texts(60), strict=True)
    tokenizer = save_tokenizer(folder / "bert")
    rows = tokenizer(list(texts), padding="max_length", max_length=16, return_tensors="np")
    np.savez(folder / "tokens.npz", y=np.array(labels), **rows)

    def use_arrays(spec: dict[str, Any]) -> None:
        names = {name: name for name in ("input_ids", "attention_mask")}
        arrays = {"arrays": {"input": names, "target": "y"}}
        spec["data"] = {"format": "npz", "path": "tokens.npz", "splits": spec["data"]["splits"], **arrays}

    by_text, by_arrays = evaluated(folder), evaluated(folder, use_arrays)
    for one, two in zip(by_text["rows"], by_arrays["rows"], strict=True):
        assert one["mean_std"] == pytest.approx(two["mean_std"], rel=1e-9)


def test_the_length_of_the_padding_changes_no_number(folder: Path) -> None:
    def longer(spec: dict[str, Any]) -> None:
        spec["data"]["text"]["max_length"] = 30

    short, long = evaluated(folder), evaluated(folder, longer)
    assert short["rows"][0]["mean_std"] == pytest.approx(long["rows"][0]["mean_std"], rel=1e-9)


def test_a_regression_on_pairs_of_a_parquet_table(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    save_bert(folder / "bert", labels=1, **SMALL)
    texts = [text for text, _ in made_texts(30)]
    pairs = [text for text, _ in made_texts(30, seed=1)]
    table = {"one": texts, "two": pairs, "score": np.linspace(-1.0, 1.0, 30)}
    parquet.write_table(pa.table(table), folder / "pairs.parquet")

    def use_pairs(spec: dict[str, Any]) -> None:
        text = {"column": "one", "pair": "two", "max_length": 20}
        splits = {"train": {"rows": "0:20"}, "test": {"rows": "20:"}}
        where = {"format": "parquet", "path": "pairs.parquet", "columns": {"target": "score"}}
        spec |= {"task": "regression", "data": {**where, "text": text, "splits": splits}}

    result = evaluated(folder, use_pairs)
    assert result["rows"][0]["rmse"] > 0
    assert result["n_outputs"] == 1


def test_the_tokenizer_and_the_weights_identify_the_run(folder: Path) -> None:
    before = evaluated(folder)["provenance"]
    assert evaluated(folder)["provenance"]["fingerprint"] == before["fingerprint"]
    path = folder / "bert/tokenizer.json"
    path.write_text(path.read_text().replace('"film"', '"movie"'))
    after = evaluated(folder)["provenance"]
    assert after["data_sha256"] != before["data_sha256"]
    assert after["weights_sha256"] == before["weights_sha256"]
    save_bert(folder / "bert", **{**SMALL, "layer_norm_eps": 1e-6})  # the same weights, another configuration
    changed = evaluated(folder)["provenance"]
    assert changed["weights_sha256"] == before["weights_sha256"]
    assert changed["fingerprint"] not in (before["fingerprint"], after["fingerprint"])


def test_a_posterior_predicts_other_texts(folder: Path) -> None:
    spec = folder / "sublaplace.yaml"
    run_command("fit", spec=spec, method="gradient", k=50, run_dir=folder / "run")
    write_table(folder / "new.csv", ["text", "label"], [("a film", 1), ("it was not very very good", 0)])
    changed = yaml.safe_load(SPEC)
    known = dict(changed["data"]["text"])
    changed["data"]["splits"]["test"] = {"path": "new.csv"}
    (folder / "new.yaml").write_text(yaml.safe_dump(changed))
    (posterior,) = (folder / "run").glob("posterior-*.safetensors")
    result = run_command("evaluate", spec=folder / "new.yaml", posterior=posterior)
    assert result["n_test"] == 2
    changed["data"]["text"]["max_length"] = 9
    (folder / "new.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(UserError, match=r"it was fitted with another tokenizer, data.text.max_length or"):
        run_command("evaluate", spec=folder / "new.yaml", posterior=posterior)
    (folder / "new.yaml").write_text(yaml.safe_dump({**changed, "data": {**changed["data"], "text": known}}))
    path = folder / "bert/tokenizer.json"
    path.write_text(path.read_text().replace('"film"', '"movie"'))
    with pytest.raises(UserError, match=r"it was fitted with another tokenizer"):
        run_command("evaluate", spec=folder / "new.yaml", posterior=posterior)


@pytest.mark.parametrize("labels", [["good", "bad"], ["Good", "BAD"], ["bad", "good"], ["LABEL_0", "LABEL_1"]])
def test_labels_in_another_order_than_the_networks_are_refused(tool: Tool, folder: Path, labels: list[str]) -> None:
    """Texts are numbered in sorted order, and config.json may say that this is wrong."""
    rows = [(text, ("bad", "good")[label]) for text, label in made_texts(60)]
    write_table(folder / "texts.csv", ["text", "label"], rows)
    change_json(folder / "bert/config.json", id2label=dict(enumerate(labels)), label2id=None)
    if labels[0].casefold() != "good":
        assert evaluated(folder)["classes"] == ["bad", "good"]
        return
    with pytest.raises(UserError, match=rf"those of the network are: {', '.join(labels)}") as error:
        evaluated(folder)
    assert "data.classes" in (error.value.hint or "")
    listed = evaluated(folder, lambda spec: spec["data"].update(classes=["good", "bad"]))
    assert listed["classes"] == ["good", "bad"]
    (folder / "sublaplace.yaml").write_text(SPEC.replace("  columns", "  classes: [bad, good]\n  columns"))
    run = tool("evaluate", "--k", 5, "--full", "none", cwd=folder)
    assert run.code == 0, run.err
    assert f"in another order than the network's own labels (id2label): {', '.join(labels)}" in run.err
    done = start(Wishes(folder / "bert", folder / "texts.csv", folder / "begun.yaml"))
    assert {finding.topic: finding.value for finding in done.findings}["classes"] == "good, bad"
    assert yaml.safe_load((folder / "begun.yaml").read_text())["data"]["classes"] == ["good", "bad"]


def test_a_missing_package_is_named_before_any_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    before = contents(folder)
    message = r"^model.build.huggingface needs a package that is not installed \(transformers\)"
    with pytest.raises(UserError, match=message) as caught:
        run_command("evaluate", spec=folder / "sublaplace.yaml", method="gradient", k=5)
    assert caught.value.hint == how_to_install("hf")
    assert contents(folder) == before


def test_rows_that_the_network_has_no_embedding_for(folder: Path) -> None:
    np.savez(folder / "tokens.npz", ids=np.array([[2, 5, 3]] * 50 + [[2, 99, 3]] * 10), y=np.arange(60) % 2)

    def use_arrays(spec: dict[str, Any]) -> None:
        arrays = {"arrays": {"input": {"input_ids": "ids"}, "target": "y"}}
        spec["data"] = {"format": "npz", "path": "tokens.npz", "splits": spec["data"]["splits"], **arrays}

    with pytest.raises(UserError, match=r"the test rows: input_ids go from 2 to 99, but .* 0 to 20"):
        evaluated(folder, use_arrays)


def test_rows_that_are_too_long(folder: Path) -> None:
    def longer(spec: dict[str, Any]) -> None:
        spec["data"]["text"]["max_length"] = 50

    with pytest.raises(UserError, match="the train rows have 50 tokens, but the network takes at most 40"):
        evaluated(folder, longer)


def test_an_ensemble_and_an_oracle_from_folders(folder: Path) -> None:
    for seed in (1, 2):
        other = seeded(BertForSequenceClassification, bert_config(**SMALL), seed=seed)
        other.save_pretrained(folder / f"other{seed}")

    def use_others(spec: dict[str, Any]) -> None:
        spec["ensemble"] = {"checkpoints": ["other1/model.safetensors", "other2/model.safetensors"]}
        spec["oracle"] = {"build": {"huggingface": "other1"}}

    result = evaluated(folder, use_others, method="gradient,ensemble")
    rows = {row["method"]: row for row in result["rows"]}
    assert rows["ensemble"]["mean_std"] > 0
    assert 0 <= rows["gradient"]["coverage95"] <= 1
    before = result["provenance"]["oracle_sha256"]
    seeded(BertForSequenceClassification, bert_config(**SMALL), seed=3).save_pretrained(folder / "other1")
    assert evaluated(folder, use_others)["provenance"]["oracle_sha256"] != before


def save_adapter(folder: Path, labels: int) -> None:
    """`adapter`, over the body of a network in `base`, which has the tokenizer."""
    peft = pytest.importorskip("peft")
    save_bert(folder / "whole", **SMALL).bert.save_pretrained(folder / "base")
    save_tokenizer(folder / "base")
    base = BertForSequenceClassification.from_pretrained(folder / "base", num_labels=labels)
    peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", r=2)).save_pretrained(folder / "adapter")
    change_json(folder / "adapter/adapter_config.json", base_model_name_or_path="base")


def test_init_reads_an_adapter_and_its_base(folder: Path) -> None:
    save_adapter(folder, labels=3)
    done = start(Wishes(folder / "adapter", folder / "texts.csv", folder / "written.yaml"))
    assert "--k" not in done.next_command  # the files do not tell how many parameters are trainable
    written = yaml.safe_load((folder / "written.yaml").read_text())
    assert written["task"] == "multiclass"  # targets 0 and 1, but three outputs
    assert written["model"] == {"build": {"huggingface": "adapter"}}
    assert written["data"]["text"] == {"column": "text", "max_length": 16}
    result = run_command("evaluate", spec=folder / "written.yaml", method="gradient", k=10)
    assert result["n_outputs"] == 3


def test_an_adapter_over_a_base_without_a_head(folder: Path) -> None:
    save_adapter(folder, labels=2)

    def use_adapter(spec: dict[str, Any]) -> None:
        spec["model"]["build"] = {"huggingface": "adapter"}

    result = evaluated(folder, use_adapter, k=20)
    assert result["n_params"] == 2 * 2 * (2 * 8) + 2 * 8 + 2  # A and B of query and value, and the head
    files = result["provenance"]["weights_sha256"]
    seeded(BertModel, bert_config(**SMALL), seed=4).save_pretrained(folder / "base")
    assert evaluated(folder, use_adapter, k=20)["provenance"]["weights_sha256"] != files


def test_an_own_network_on_texts(folder: Path) -> None:
    (folder / "text_nets.py").write_text(OWN_NETWORK)
    weights = {"words.weight": torch.randn(21, 4), "head.weight": torch.randn(2, 4), "head.bias": torch.zeros(2)}
    torch.save(weights, folder / "own.pt")

    def use_own(spec: dict[str, Any]) -> None:
        spec["model"] = {"build": {"import": "text_nets:make"}, "weights": {"path": "own.pt"}}
        spec["data"]["text"]["tokenizer"] = "bert"

    result = evaluated(folder, use_own, allow_code=["text_nets"], k=20)
    assert result["n_params"] == 21 * 4 + 4 * 2 + 2
