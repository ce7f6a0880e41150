"""Specs that are no valid YAML or no readable file; and that no content at all gives a traceback."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_texts import MINIMAL, changed, load, problems, with_data, with_top

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.spec.loading import SpecError, load_spec

YAML_PROBLEMS = [
    ("", "1:1: the file is empty"),
    ("# only a comment\n", "1:1: the file is empty"),
    ("- a\n", "1:1: expected a mapping with version, task, model, data, got a list"),
    ("---\njust text\n", '2:1: expected a mapping with version, task, model, data, got the text "just text"'),
    (MINIMAL + "---\na: 1\n", "9:1: a second document begins here"),
    (MINIMAL + "\tposterior: {}\n", "9:1: found a tab; YAML allows only spaces for indentation"),
    (changed("{path: model.safetensors}", "{path: [}"), "5:20: this is not valid YAML: "),
    (with_top("posterior: {prior_precision: {*.bias: 1}}"), "9:31: a text that starts with * must be quoted"),
    (
        with_top("posterior: {prior_precision: *a}"),
        "9:30: posterior.prior_precision: aliases (*name) are not",
    ),
    (
        with_top("posterior: {prior_precision: !!float 1}"),
        "9:30: posterior.prior_precision: tags (!name) are not",
    ),
    (with_top("oracle: !!python/object/apply:os.system [x]"), "9:9: oracle: tags (!name) are not supported"),
    (with_top("? [a]\n: b"), "9:3: expected a text as key"),
    (with_data("splits: {train: {rows: 353:}}"), "9:29: this is not valid YAML: "),
    (with_top("3: b"), "9:1: expected a text as key, got 3; put it in quotes"),
    (with_top("oracle: " + "[" * 500), "9:41: nested deeper than 32 levels"),
    (MINIMAL + "a: \x01\n", "9:4: the character U+0001 is not allowed"),
    (with_top('a: "\\ud800"'), "9:4: the text has a character that is not allowed"),
    (with_top('a: "\\UFFFFFFFF"'), "9:"),
    (MINIMAL + "version: 1\n", "9:1: version: duplicate key, first used at line 1"),
    ("\ufeff" + changed("version: 1", "version: 2"), "1:10: version: expected 1"),
    (MINIMAL.replace("\n", "\r\n").replace("csv\r\n  p", "cvs\r\n  p"), "7:11: data.format"),
]


@pytest.mark.parametrize(("text", "expected"), YAML_PROBLEMS, ids=[expected for _, expected in YAML_PROBLEMS])
def test_what_is_wrong_with_the_yaml(tmp_path: Path, text: str, expected: str) -> None:
    (line,) = problems(tmp_path, text)
    assert line.startswith(expected)


def test_every_duplicate_is_reported(tmp_path: Path) -> None:
    lines = problems(tmp_path, MINIMAL + "  path: x\n  path: y\nversion: 1\n")
    assert [line.split(":")[0] for line in lines] == ["9", "10", "11"]
    assert lines[1] == "10:3: data.path: duplicate key, first used at line 8"


def test_billion_laughs_costs_nothing(tmp_path: Path) -> None:
    laughs = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    began = time.perf_counter()
    assert any("aliases" in line for line in problems(tmp_path, "a0: &a0 [x]\n" + laughs))
    assert time.perf_counter() - began < 2


def test_texts_in_messages_cannot_steer_the_terminal(tmp_path: Path) -> None:
    lines = problems(tmp_path, with_top('"\\e[31m": 1') + 'oracle: "\\e[2J\\n"\n')
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"version: 1\ntask: \xff\n")
    with pytest.raises(SpecError, match=r"s\.yaml:2:7: not UTF-8"):
        load_spec(path)


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(SpecError, match=r"s\.yaml:1:1: the file is larger than 1 MiB"):
        load_spec(path)


@pytest.mark.parametrize("name", ["missing.yaml", ".", "a\0b", "x" * 5000])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot read the spec"):
        load_spec(tmp_path / name)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.text(alphabet=" \n\t:-[]{}&*!|>'\"%@?,#~ab01.e\\u"), st.binary().map(bytes)))
def test_no_text_raises_anything_but_a_user_error(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError):
        load_spec(path)


_VALUES = st.recursive(
    st.sampled_from(
        ["none", "x", "1", "-1", "1.5", "true", "~", "test", "marglik", "'*'", "0:3", ".nan", "from-train"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(
            st.sampled_from(["path", "train", "same_as", "mean", "std", "arch", "exported", "from", "input", "zz"]),
            inner,
            max_size=3,
        ).map(lambda items: "{" + ", ".join(f"{key}: {value}" for key, value in items.items()) + "}"),
    ),
    max_leaves=8,
)
_REPLACED = [
    "{arch: mlp, args: {in: 10, hidden: [50, 50], out: 1}}",
    "{path: model.safetensors}",
    "csv\n",
    "regression",
]
_KEYS = ["columns", "arrays", "standardise", "transforms", "splits"]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(_REPLACED), st.sampled_from(_KEYS), _VALUES, _VALUES, _VALUES, _VALUES)
def test_any_value_anywhere_loads_or_is_a_user_error(
    tmp_path: Path, old: str, key: str, a: str, b: str, c: str, d: str
) -> None:
    text = MINIMAL.replace(old, f"{a}\n", 1) + f"  {key}: {b}\nposterior: {c}\noracle: {d}\n"
    with suppress(SpecError):
        load(tmp_path, text)


MANY = 20_000
MANY_PROBLEMS = {
    "aliases": (with_data(f"columns: {{input: [{', '.join(['*a'] * MANY)}]}}"), "aliases"),
    "aliases of args": (changed("out: 1}", f"out: 1, {', '.join(f'k{i}: *a' for i in range(MANY))}}}"), "aliases"),
    "duplicate keys": (MINIMAL + "version: 1\n" * MANY, "duplicate key"),
    "unknown keys": (MINIMAL + "".join(f"verson{i}: 1\n" for i in range(MANY)), "did you mean 'version'"),
    "metrics": (with_top("gate:") + "".join(f"  w{i}: {{}}\n" for i in range(MANY)), "unknown metric; "),
    "unknown splits": (
        with_data("splits:") + "".join(f"    s{i}: {{same_as: s{i + 1}}}\n" for i in range(MANY)),
        "unknown key",
    ),
    "wrong items": (with_data(f"columns: {{input: [{', '.join(['-1'] * MANY)}]}}"), "a position of at least 0"),
}


@pytest.mark.parametrize("name", MANY_PROBLEMS)
def test_many_problems_take_linear_time_and_are_counted(tmp_path: Path, name: str) -> None:
    text, expected = MANY_PROBLEMS[name]
    path = tmp_path / "s.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert time.process_time() - began < 20  # seconds; minutes if the time were quadratic
    *listed, last = caught.value.problems
    assert len(listed) == 50
    assert all(expected in line for line in listed)
    assert last.startswith(f"{path}: and {MANY - 50} more problems") or name == "metrics"
    assert len(str(caught.value)) < 50_000


def test_fifty_problems_are_all_listed(tmp_path: Path) -> None:
    assert len(problems(tmp_path, MINIMAL + "version: 1\n" * 50)) == 50


def test_long_names_are_shortened(tmp_path: Path) -> None:
    key = "k" * 900
    for text in (with_top(f"{key}: 1"), with_top(f"oracle: {{? {key * 9} : 1}}"), with_top(f"{'9' * 900}: 1")):
        assert all(len(line) < 1000 for line in problems(tmp_path, text))
