"""The paper's studies with small settings: they run, resume where they stopped, and count their claims correctly."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import pytest
import torch
from cli.cli_tools import ENVIRONMENT, quick_python
from torch import nn

PAPER = Path(__file__).resolve().parents[1] / "examples" / "paper"
STUDIED = ("uci", "year", "cifar")  # whose runs have several methods


def study(*words, code=0):
    done = subprocess.run(
        [*quick_python(), str(PAPER / "main.py"), *map(str, words)],
        env={name: value for name, value in ENVIRONMENT.items() if name != "SUBLAPLACE_DATA"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == code, done.stderr
    return done


def lines_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    study("--quick", "--results", folder)
    return folder


def test_every_study_leaves_a_table(results):
    uci, wheel, theory = (lines_of(results / f"{name}.csv") for name in ("uci", "wheel", "theory"))
    assert {"dataset", "model", "method", "k", "seed", "w2"} <= uci[0].keys()
    assert {line["rescale"] for line in uci} == {"none", "scale", "hybrid"}
    assert {"gradient", "greedy", "subnet-diagonal", "last-k", "neural-linear", "kfac", "full"} <= {
        line["method"] for line in uci
    }
    year, cifar = (lines_of(results / f"{name}.csv") for name in ("year", "cifar"))
    assert {(line["dataset"], line["seed"]) for line in year} == {("made", "0"), ("made", "1")}
    assert {"ensemble", "kfac", "greedy", "full"} <= {line["method"] for line in year}
    assert {(line["dataset"], line["model"]) for line in cifar} == {
        ("binary", "resnet20"),
        ("single-logit", "resnet20"),
        ("ten-class", "resnet20"),
    }
    assert all(float(line["w2_relative"]) >= 0 for line in cifar)
    for lines, rescalings in ((uci, 3), (year, 1), (cifar, 3)):
        for method in ("sketch", "gradient+sketch"):
            own = [line for line in lines if line["method"] == method]
            assert {line["k"] for line in own} == {line["k"] for line in lines if line["method"] == "gradient"}
            assert len({line.get("rescale") for line in own}) == rescalings
    assert list(wheel[0])[:5] == ["method", "k", "delta", "seed", "regret"]
    assert {(line["method"], line["k"]) for line in wheel} == {
        ("map", ""),
        ("gradient", "100"),
        *((method, "20") for method in ("greedy", "sketch", "gradient+sketch")),
    }
    assert all(0 <= float(line["regret"]) <= 200 * 49 for line in wheel)
    claims = [line for line in theory if line["dataset"] != "best" and line["holds"]]
    assert len(claims) > 10
    assert {line["holds"] for line in claims} == {"1"}


def test_coverage_of_the_classes_is_that_of_the_tool_taken_apart(results):
    ten = [line for line in lines_of(results / "cifar.csv") if line["dataset"] == "ten-class"]
    assert len(ten) > 8
    for line in ten:
        classes = [float(line[f"coverage95_class{c}"]) for c in range(10)]
        assert sum(classes) / 10 == pytest.approx(float(line["coverage95"]), abs=2e-6)
    assert len({line["coverage95"] for line in ten}) > 1


def test_the_report_has_pictures_and_says_how_many_runs_there_were(results):
    text = (results / "RESULTS.md").read_text()
    assert "made small 1" in text
    assert "| `uci` | made: 1 replications of the small network" in text
    assert "| `wheel` | 5 methods, 1 seeds of each δ and reading | 25 seeds |" in text
    assert "<summary>binary, resnet20, N = 24 (p = 269722;" in text
    assert "There are not enough runs yet to say." in text
    assert "[WHEEL.md](WHEEL.md)" in text
    wheel = (results / "WHEEL.md").read_text()
    assert "| 0.95 | total | `gradient+sketch` | 20 | 1 |" in wheel
    assert "| weight decay α | `map` |  | 1 |" in wheel
    for name in ("uci.png", "uci-rescaled.png", "year-made.png", "cifar.png", "wheel.png", "wheel-bars.png"):
        assert f"({name})" in text
        assert (results / name).stat().st_size > 5_000


def test_the_report_tells_where_sums_are_closer(results):
    text = (results / "RESULTS.md").read_text()
    assert "A plain sketch is no sub-network: its kernel is that of the full posterior on average over seeds" in text
    section = text.split("## Random sums of gradients")[1].split("\n## ")[0]
    assert (
        "year: made: 2 of 2; cifar: binary, resnet20, 24: 1 of 1; cifar: single-logit, resnet20, 24: 1 of 1;" in section
    )
    assert "| `gradient+sketch, scale`, `greedy, scale` |" in section


def test_what_is_done_is_not_done_again(results):
    before = {path.name: path.read_bytes() for path in results.glob("*.csv")}
    again = study("--quick", "uci", "wheel", "--results", results)
    assert "regret" not in again.stderr
    assert {path.name: path.read_bytes() for path in results.glob("*.csv")} == before


def test_a_new_method_is_added_to_a_finished_table(results, tmp_path):
    def parts(folder):
        return sorted(
            tuple(line.get(name, "") for name in ("dataset", "model", "seed", "method", "rescale", "k"))
            for name in STUDIED
            for line in lines_of(folder / f"{name}.csv")
        )

    before = {}
    for name in STUDIED:
        text = (results / f"{name}.csv").read_text()
        before[name] = "".join(line for line in text.splitlines(keepends=True) if ",sketch," not in line)
        (tmp_path / f"{name}.csv").write_text(before[name])
    study("--quick", *STUDIED, "--results", tmp_path)
    assert parts(tmp_path) == parts(results)
    assert all((tmp_path / f"{name}.csv").read_text().startswith(text) for name, text in before.items())


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    from common import Results

    return Results(tmp_path / "some.csv", ("method", "seed", "w2"), ("method", "seed"))


def test_a_table_takes_a_run_once_and_keeps_what_is_there(table):
    for w2 in (0.5, 0.7):  # a second process that did the same run
        table.add([{"method": "greedy", "seed": 0, "w2": w2}, {"method": "greedy", "seed": 0, "w2": 0.1}])
    table.add([{"method": "greedy", "seed": 1, "w2": None}])
    assert table.path.read_text() == "method,seed,w2\ngreedy,0,0.5\ngreedy,0,0.1\ngreedy,1,\n"
    assert table.done() == {("greedy", "0"), ("greedy", "1")}


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_run_that_was_written_in_part_is_done_again(table, cut):
    """Two lines of seed 1, the second one incomplete: both are removed, seed 0 stays."""
    table.add([{"method": "greedy", "seed": 0, "w2": 0.5}])
    before = table.path.read_text()
    lines = [{"method": "greedy", "seed": 1, "w2": 0.25}, {"method": "greedy", "seed": 1, "w2": 0.75}]
    table.add(lines)
    whole = table.path.read_text()
    table.path.write_text(whole[:-cut])
    assert table.done() == {("greedy", "0")}
    table.add(lines)
    assert table.path.read_text() == whole
    assert whole.startswith(before)


def test_a_table_with_other_columns_is_not_written_to(table):
    table.path.write_text("method,seed\ngreedy,0\n")
    for act in (table.done, lambda: table.add([{"method": "greedy", "seed": 1, "w2": 0.5}])):
        with pytest.raises(SystemExit, match="its columns are not those of this study"):
            act()
    assert table.path.read_text() == "method,seed\ngreedy,0\n"


def test_two_at_once_do_every_run_once(tmp_path):
    words = [*quick_python(), str(PAPER / "main.py"), "theory", "--quick", "--results", str(tmp_path)]
    both = [subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait(120) for one in both] == [0, 0]
    lines = [(line["dataset"], line["seed"], line["method"], line["k"]) for line in lines_of(tmp_path / "theory.csv")]
    assert len(lines) == len(set(lines)) > 40


def test_wrong_words_are_refused(tmp_path):
    assert "have the same names" in study("uci", "--quick", "--results", PAPER / "results", code=2).stderr
    assert "unknown study 'ucy'" in study("ucy", "--quick", code=2).stderr
    assert "the full studies need the data sets" in study("uci", code=2).stderr
    assert "there is no such folder" in study("uci", "--data-dir", tmp_path / "nowhere", code=2).stderr


def test_a_grown_network_is_the_same_function_and_one_logit_tells_the_groups_apart(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    from cifar_training import augmented, grown, one_logit

    from sublaplace_cli import cifar_resnet

    torch.manual_seed(0)
    small, x = cifar_resnet(depth=20, out=10, shortcut="A").eval(), torch.randn(5, 3, 32, 32)
    for norm in (m for m in small.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
    deep = grown(small, 56).eval()
    logits = small(x)
    assert torch.equal(deep(x), logits)
    expected = logits[:, 5:].mean(1, keepdim=True) - logits[:, :5].mean(1, keepdim=True)
    torch.testing.assert_close(one_logit(deep)(x), expected, rtol=1e-4, atol=1e-5)

    image = torch.arange(1024, dtype=torch.int32).view(1, 1, 32, 32).expand(400, 3, 32, 32)
    moved = augmented(image)
    inner = moved[:, 0, 8:24, 8:24]  # away from the edge: each pixel comes from a place up to four away
    down, right = (inner // 32)[:, 0, 0] - 8, inner % 32
    assert set(down.long().tolist()) == set(range(-4, 5))
    assert {round(float(step)) for step in (right[:, 0, 1] - right[:, 0, 0])} == {-1, 1}  # flipped or not


def test_claims_about_distance_and_coverage_are_counted(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    from comparing import best_of, claims, coverage_claims, kfac_claims

    def at(method, k, w2, coverage):
        numbers = {"w2": str(w2), "coverage95": str(coverage), "discrepancy": str(w2), "n_params": "100"}
        return {"dataset": "d", "model": "m", "method": method, "k": k, "seed": "0", "rescale": "none"} | numbers

    lines = [at("gradient", "15", 0.9, 0.5), at("gradient", "30", 0.5, 1.0)]
    lines += [at("greedy", "15", 0.905, 0.5), at("greedy", "30", 0.55, 1.0)]  # within 1 %, and not
    lines += [at("last-k", "15", 0.903, 0.4), at("last-k", "30", 0.8, 0.94)]  # further by less than 1 %; nearer to 95 %
    lines += [at("subnet-diagonal", k, 1.0, 0.0) for k in ("15", "30")] + [at("kfac", "", 0.6, 1.0)]
    made = claims("S", lines, "dataset", "model") + coverage_claims("S", lines, "dataset", "model")
    counted = {said: str(count) for said, _, count in made + kfac_claims("S", lines, "dataset", "model")}
    assert counted["`gradient` closer than `last-k`"] == "2 of 2"
    assert counted["`gradient` closer than `last-k`, by more than 1 %"] == "1 of 2"
    assert counted["`greedy` as close as `gradient` (to 1 %) or closer"] == "1 of 2"
    assert counted["coverage of `gradient` nearer to 95 % than that of `last-k`"] == "1 of 2"
    assert counted["coverage of `gradient` nearer to 95 % than that of `subnet-diagonal`"] == "2 of 2"
    assert counted["`gradient` closer than `kfac` at a moderate k: up to p/3"] == "1 of 1"
    assert counted["`gradient` closer than `kfac` at a moderate k: up to p/5"] == "0 of 1"
    assert best_of(lines).splitlines()[2] == "| `gradient` | 1 / 1 | 1 / 1 |"
