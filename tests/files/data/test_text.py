"""Texts of a table as token ids: those of transformers, whatever the other rows are; one error per wrong file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data.datasets import Split, load_splits
from sublaplace_cli.files.data.tokenizing import tokenizer_files
from sublaplace_cli.files.spec.models import Spec

pytest.importorskip("transformers")
from huggingface_folders import change_json, save_tokenizer, write_table

ROWS = [("the film was good", 1), ("it was very, very bad", 0), ("Awful\nstory", 0), ('i liked "this" film', 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tokenizer(tmp_path / "words")
    write_table(tmp_path / "texts.csv", ["text", "label"], ROWS)
    return tmp_path


def spec_of(path: str = "texts.csv", splits: Any = None, **text: Any) -> Spec:
    data = {
        "format": path.rpartition(".")[2],
        "path": path,
        "text": {"column": "text", "max_length": 8, "tokenizer": "words", **text},
        "columns": {"target": "label"},
        "splits": splits or {"train": {}},
    }
    model = {"build": {"import": "a:b"}, "weights": {"path": "w.pt"}}
    return Spec.model_validate({"version": 1, "task": "multiclass", "model": model, "data": data}, by_alias=True)


def read(folder: Path, memory: int = 1 << 28, names: tuple[str, ...] = ("train",), **how: Any) -> dict[str, Split]:
    return load_splits(spec_of(**how), names, lambda value, _: folder / value, memory)


def refused(folder: Path, *words: str, **how: Any) -> None:
    with pytest.raises(UserError) as caught:
        read(folder, **how)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_the_tokens_are_those_of_transformers(folder: Path) -> None:
    split = read(folder)["train"]
    texts = [text for text, _ in ROWS]
    whole = save_tokenizer(folder / "words")
    expected = whole(texts, padding="max_length", truncation=True, max_length=8, return_tensors="np")
    assert isinstance(split.raw, dict)
    assert set(split.raw) == set(expected) == {"input_ids", "attention_mask", "token_type_ids"}
    for name, array in split.raw.items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype.kind == "i"
    assert split.targets is not None
    assert split.targets.tolist() == [1, 0, 0, 1]


def test_pairs(folder: Path) -> None:
    write_table(folder / "texts.csv", ["text", "other", "label"], [(t, "a film", y) for t, y in ROWS])
    raw = read(folder, pair="other", max_length=12)["train"].raw
    tokenizer = save_tokenizer(folder / "words")
    texts = [text for text, _ in ROWS]
    expected = tokenizer(texts, ["a film"] * 4, padding="max_length", truncation=True, max_length=12)
    assert isinstance(raw, dict)
    assert raw["input_ids"].tolist() == expected["input_ids"]
    assert raw["token_type_ids"].tolist() == expected["token_type_ids"]
    assert raw["token_type_ids"].max() == 1


def test_a_row_does_not_depend_on_the_others(folder: Path) -> None:
    together = read(folder)["train"].raw
    write_table(folder / "texts.csv", ["text", "label"], [*ROWS[1:2], ("the a " * 50, 1)])
    alone = read(folder)["train"].raw
    assert isinstance(together, dict)
    assert isinstance(alone, dict)
    assert together["input_ids"][1].tolist() == alone["input_ids"][0].tolist()


def test_texts_that_are_cut_are_counted(folder: Path) -> None:
    (note,) = read(folder, max_length=6)["train"].notes
    assert note == "texts.csv: 2 of 4 texts have more than 6 tokens and were cut"
    assert read(folder, max_length=10)["train"].notes == ()
    (note,) = read(folder, max_length=30)["train"].notes
    assert note == "texts.csv: the longest text has 8 tokens; data.text.max_length: 8 instead of 30 is faster"


def test_more_rows_than_a_batch(folder: Path) -> None:
    rows = [ROWS[i % 4] for i in range(1100)]
    write_table(folder / "texts.csv", ["text", "label"], rows)
    split = read(folder)["train"]
    assert isinstance(split.raw, dict)
    assert split.raw["input_ids"].shape == (1100, 8)
    np.testing.assert_array_equal(split.raw["input_ids"][1096:], split.raw["input_ids"][:4])
    assert split.targets is not None
    assert split.targets.tolist() == [label for _, label in rows]


def test_a_parquet_table_gives_the_same(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    texts, labels = zip(*ROWS, strict=True)
    table = pa.table({"label": labels, "text": texts, "unused": [None] * 4})
    parquet.write_table(table, folder / "texts.parquet", row_group_size=3)
    one, two = read(folder)["train"], read(folder, path="texts.parquet")["train"]
    assert isinstance(one.raw, dict)
    assert isinstance(two.raw, dict)
    for name, array in one.raw.items():
        np.testing.assert_array_equal(array, two.raw[name])
    assert one.targets is not None
    assert two.targets is not None
    assert one.targets.tolist() == two.targets.tolist()
    parquet.write_table(pa.table({"text": [7, 8], "label": [0, 1]}), folder / "texts.parquet")
    refused(folder, "column 'text' has type int64, expected texts", path="texts.parquet")
    parquet.write_table(pa.table({"text": ["a", None], "label": [0, 1]}), folder / "texts.parquet")
    refused(folder, "row 1, column 'text' is empty", path="texts.parquet")


def test_an_arrow_table_gives_the_same(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import feather

    def write(**columns: Any) -> None:
        feather.write_feather(pa.table(columns), str(folder / "texts.arrow"), chunksize=3)

    texts, labels = map(list, zip(*ROWS, strict=True))
    one = read(folder)["train"]
    for column in (pa.array(texts), pa.array(texts).dictionary_encode(), pa.array(texts, pa.large_string())):
        write(label=labels, text=column, unused=[None] * 4)
        two = read(folder, path="texts.arrow")["train"]
        assert isinstance(one.raw, dict)
        assert isinstance(two.raw, dict)
        for name, array in one.raw.items():
            np.testing.assert_array_equal(array, two.raw[name])
        assert one.targets is not None
        assert two.targets is not None
        assert one.targets.tolist() == two.targets.tolist()
    write(text=[7, 8], label=[0, 1])
    refused(folder, "column 'text' has type int64, expected texts", path="texts.arrow")
    write(text=["a", None], label=[0, 1])
    refused(folder, "row 1, column 'text' is empty", path="texts.arrow")
    write(text=["a", "b"], label=[[0], [1]])
    refused(folder, "column 'label' has type list", "expected a number or a label", path="texts.arrow")


@pytest.mark.parametrize("form", ["csv", "parquet", "arrow"])
def test_labels_may_be_texts_or_missing(folder: Path, form: str) -> None:
    import pyarrow as pa
    from pyarrow import feather, parquet

    def write(name: str, labels: list[str | None]) -> None:
        texts = [text for text, _ in ROWS]
        if form == "csv":
            write_table(
                folder / f"{name}.csv", ["text", "label"], [*zip(texts, [y or "" for y in labels], strict=True)]
            )
        else:
            save = parquet.write_table if form == "parquet" else feather.write_feather
            save(pa.table({"text": texts, "label": pa.array(labels, pa.string())}), str(folder / f"{name}.{form}"))

    write("texts", ["good", "bad", "bad", "good"])
    write("new", [None, None, None, None])
    splits = {"train": {}, "test": {"path": f"new.{form}"}}
    found = read(folder, path=f"texts.{form}", splits=splits, names=("train", "test"))
    assert found["train"].classes == ("bad", "good")
    assert found["train"].targets is not None
    assert found["train"].targets.tolist() == [1, 0, 0, 1]
    assert found["test"].targets is None


def test_measurements_of_texts(folder: Path) -> None:
    write_table(folder / "texts.csv", ["text", "label"], [("a film", 0.5), ("bad", 2), ("the a", 1e3)])
    measured = spec_of().model_copy(update={"task": "regression"})
    split = load_splits(measured, ("train",), lambda value, _: folder / value, 1 << 28)["train"]
    assert split.targets is not None
    assert split.targets.tolist() == [[0.5], [2.0], [1000.0]]
    write_table(folder / "texts.csv", ["text", "label"], [("a film", 0.5), ("bad", "high")])
    with pytest.raises(UserError, match=r"line 3, column 'label' is 'high', expected a number"):
        load_splits(measured, ("train",), lambda value, _: folder / value, 1 << 28)


def test_columns_by_position_have_no_header(folder: Path) -> None:
    write_table(folder / "plain.csv", [*ROWS[0]], ROWS[1:])
    how = spec_of(path="plain.csv", column=0)
    data = how.data.model_copy(update={"columns": how.data.columns.model_copy(update={"target": 1})})
    split = load_splits(how.model_copy(update={"data": data}), ("train",), lambda v, _: folder / v, 1 << 28)["train"]
    assert len(split) == 4


def test_other_rows_may_lack_the_target(folder: Path) -> None:
    write_table(folder / "new.csv", ["id", "text"], [(1, "a film")])
    splits = {"train": {}, "test": {"path": "new.csv"}}
    test = read(folder, names=("train", "test"), splits=splits)["test"]
    assert len(test) == 1
    assert test.targets is None


TABLES = [
    ("text,label\na film,1\n,0\n", "line 3, column 'text' is empty, expected a text"),
    ("text,label\na film,1\n  ,0\n", "line 3, column 'text' is empty, expected a text"),
    ('text,label\n"a\nfilm",1\n,0\n', "row 1, column 'text' is empty, expected a text"),
    ("text,label\na film,good\nbad,1\n", "the target has numbers ('1') and texts ('good')"),
    ("text,label\na film,\nbad,1\n", "1 of 2 rows have no target: line 2 (column 'label')"),
    ("text,label\na, film,1\n", "line 2 has 3 cells, the first line has 2"),
    ('text,label\n"a film,1\n', "unexpected end of data"),
    ("text,label\n\na film,1\n", "line 2 has 0 cells"),
    ("text,label\n", "has no rows"),
    ("", "is empty"),
    ("review,label\na film,1\n", "no column 'text'"),
    ("text,y\na film,1\n", "no column 'label'"),
    ("text,label\n" + "a " * 100_000 + ",1\n", "field larger than field limit"),
]


@pytest.mark.parametrize(("content", "expected"), TABLES, ids=[expected for _, expected in TABLES])
def test_tables_that_are_refused(folder: Path, content: str, expected: str) -> None:
    (folder / "texts.csv").write_text(content)
    refused(folder, "texts.csv", expected)


def test_a_column_that_is_used_twice(folder: Path) -> None:
    refused(folder, "a column is used more than once", pair="text")
    refused(folder, "a column is used more than once", pair="label")


def test_memory_is_bounded(folder: Path) -> None:
    refused(folder, "the tokens of its texts", memory=100)


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "words" / name).unlink()
    refused(folder, "data.text.tokenizer", "has no tokenizer", "tokenizer.save_pretrained")
    shutil.rmtree(folder / "words")
    refused(folder, "data.text.tokenizer", "is missing")


def test_a_tokenizer_with_code_or_damage(folder: Path) -> None:
    words = folder / "words"
    change_json(words / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]})
    refused(folder, "tokenizer_config.json: auto_map names code, which is refused")
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": None}
    change_json(words / "tokenizer_config.json", auto_map=None, **plain)
    refused(folder, "has no padding token")
    save_tokenizer(words)
    (words / "tokenizer.json").write_text('{"model": {"type": "NoSuch"}}')
    refused(folder, "not a readable tokenizer")
    (words / "tokenizer.json").write_text("{")
    refused(folder, "not a readable tokenizer")


def test_an_old_folder_with_a_plain_vocabulary(folder: Path) -> None:
    from huggingface_folders import SPECIAL, WORDS

    expected = read(folder)["train"].raw
    shutil.rmtree(folder / "words")
    (folder / "words").mkdir()
    (folder / "words/vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]))
    (folder / "words/tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    found = read(folder)["train"].raw
    assert isinstance(expected, dict)
    assert isinstance(found, dict)
    assert found["input_ids"].tolist() == expected["input_ids"].tolist()


def test_the_files_that_are_hashed(folder: Path) -> None:
    (folder / "words/README.md").write_text("unrelated")
    (folder / "words/config.json").write_text("{}")
    names = [path.name for path in tokenizer_files(spec_of(), lambda value, _: folder / value)]
    assert names == ["config.json", "tokenizer.json", "tokenizer_config.json"]
