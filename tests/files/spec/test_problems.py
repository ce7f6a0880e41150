"""Every problem of a well-formed spec: one line each, with its exact line and column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from spec_texts import changed, problems, with_data, with_top

from sublaplace_cli.catalog import TASKS
from sublaplace_cli.files.spec.loading import load_spec
from sublaplace_cli.files.spec.part import Part
from sublaplace_cli.files.spec.preparing import FixedMeanStd, Moments, Permute, Scale
from sublaplace_cli.files.spec.splits import SplitSpec

INF, NAN = float("inf"), float("nan")
REQUIRED = "this key is required, but missing"
CHANGED = [
    (changed("version: 1", "version: 2"), "1:10: version: expected 1, got the number 2"),
    (changed("version: 1", "version: true"), "1:10: version: expected 1, got true"),
    (changed("version: 1", "version: '1'"), '1:10: version: expected 1, got the text "1"'),
    (changed("version: 1\n", ""), f"1:1: version: {REQUIRED}"),
    (changed("  format: csv\n", ""), f"7:3: data.format: {REQUIRED}"),
    (changed("  path: rows.csv\n", ""), f"7:3: data.path: {REQUIRED}"),
    (
        changed("  weights: {path: model.safetensors}\n", ""),
        f"4:3: model.weights: {REQUIRED} (only exported and huggingface bring their own)",
    ),
    (changed("{path: model.safetensors}", "{}"), f"5:12: model.weights.path: {REQUIRED}"),
    (changed("rows.csv", "7"), "8:9: data.path: expected a text, got the number 7"),
    (changed("rows.csv", "''"), "8:9: data.path: expected a text, got an empty one"),
    (
        changed("{path: model.safetensors}", "abc"),
        '5:12: model.weights: expected a mapping, got the text "abc"',
    ),
    (changed("s}", "s, strict: 1}"), "5:46: model.weights.strict: expected true or false, got the number 1"),
    (changed("s}", "s, rename: {a: 1}}"), "5:50: model.weights.rename.a: expected a text, got the number 1"),
    (
        changed("arch: mlp", "import: a.b"),
        "4:19: model.build.import: expected a text like 'package.module:function', got the text \"a.b\"",
    ),
    (
        changed("arch: mlp", "arch: mlp, exported: m.pt2").replace("{in: 10, hidden: [50, 50], out: 1}", "{}"),
        "4:10: model.build: expected exactly one of arch, import, exported and huggingface, got arch and exported",
    ),
    (
        changed("arch: mlp, ", ""),
        "4:10: model.build: expected exactly one of arch, import, exported and huggingface, got none of them",
    ),
    (changed("arch: mlp", "huggingface: bert"), "4:30: model.build.args: a Hugging Face folder takes no args"),
    (changed("arch: mlp", "base: bert, arch: mlp"), "4:11: model.build.base: only together with huggingface"),
    (
        changed("csv\n", "csv\n", with_data("text: {column: review}")),
        "9:9: data.text.tokenizer: texts need a tokenizer: name its folder here, unless build: {huggingface: ...} "
        "brings one",
    ),
    (
        changed("csv\n", "csv\n", with_data("text: {column: review, tokenizer: t, max_length: 0}")),
        "9:52: data.text.max_length: expected a number of at least 1, got the number 0",
    ),
    (
        changed("csv\n", "csv\n", with_data("columns: {input: a, target: y}\n  text: {column: b, tokenizer: t}")),
        "9:13: data.columns.input: not together with text, which is the only input",
    ),
    (
        changed("csv\n", "csv\n", with_data("transforms: [{scale: 2}]\n  text: {column: b, tokenizer: t}")),
        "9:3: data.transforms: not together with text",
    ),
    (
        changed("csv\n", "csv\n", with_data("standardise: {input: from-train}\n  text: {column: b, tokenizer: t}")),
        "9:17: data.standardise.input: not together with text",
    ),
    (
        changed("csv\n", "npz\n", with_data("text: {column: review, tokenizer: t}")),
        "9:3: data.text: only for the formats csv and parquet and arrow, but format is npz",
    ),
    (changed("arch: mlp", "exported: m.pt2"), "4:28: model.build.args: an exported model takes no args"),
    (
        changed("  weights", "  wrap: {binary-logodds: {classes: [1]}}\n  weights"),
        "5:3: model.wrap: needs task binary, but task is regression",
    ),
    (
        changed("csv\n", "npz\n", with_data("columns: {target: y}")),
        "9:3: data.columns: only for the formats csv and parquet and arrow and npy, but format is npz",
    ),
    (
        changed("format: csv", "format: npz", with_data("arrays: {input: 1}")),
        "9:19: data.arrays.input: expected an array's name, a list or a mapping of names, got the number 1",
    ),
    (
        changed("  path: rows.csv\n", "", with_data("splits: {train: {path: a.csv}, test: {rows: ':'}}")),
        f"7:3: data.path: {REQUIRED} (split 'test' has no path)",
    ),
    (
        changed("regression", "binary", with_top("posterior: {noise_variance: 0.5}")),
        "9:29: posterior.noise_variance: only for task regression, but task is binary",
    ),
    (
        changed("regression", "multiclass", with_top("posterior: {hessian: {sampled: 0}}")),
        "9:32: posterior.hessian.sampled: expected a number of at least 1, got the number 0",
    ),
    (
        changed("regression", "multiclass", with_top("posterior: {hessian: {sampled: 2.5}}")),
        "9:32: posterior.hessian.sampled: expected a whole number, got the number 2.5",
    ),
    (
        changed("regression", "binary\noutputs: mean-and-log-variance"),
        "3:10: outputs: only for task regression, but task is binary",
    ),
    (
        changed("regression", "regression\noutputs: mean-and-variance"),
        "3:10: outputs: expected 'mean-and-log-variance', got the text \"mean-and-variance\"",
    ),
    (changed("regression", "regression\noutputs: [1]"), "3:10: outputs: expected 'mean-and-log-variance', got a list"),
    (
        changed("regression", "multiclass", with_data("standardise: {target: from-train}")),
        "9:25: data.standardise.target: only for task regression, but task is multiclass",
    ),
]

# a line added to the data section (line 9, from column 3), and the problem it gives
DATA = """\
standardise: 3
    9:16: data.standardise: expected a mapping, got the number 3
standardise: {input: train}
    9:24: data.standardise.input: expected 'none', 'from-train' or {mean: ..., std: ...}, got the text "train"
standardise: {input: {mean: 0, std: [1, 0]}}
    9:43: data.standardise.input.std[1]: expected a number above 0, got the number 0
standardise: {input: {mean: [0, 1, 2], std: [1, 2]}}
    9:24: data.standardise.input: mean has 3 items, std has 2; expected the same number
transforms: {scale: 1}
    9:15: data.transforms: expected a list, got a mapping
transforms: [{scale: 1, permute: [0]}]
    9:16: data.transforms[0]: expected one key of scale, permute, normalise, got a mapping
transforms: [{scale: true}]
    9:24: data.transforms[0].scale: expected a number, got true
transforms: [{permute: [0, 2]}]
    9:26: data.transforms[0].permute: expected each of the positions 0, 1, 2, ... once
transforms: [{normalise: {mean: 0, std: 0}}]
    9:43: data.transforms[0].normalise.std: expected a number other than 0
columns: {target: -1}
    9:21: data.columns.target: expected a position of at least 0, got the number -1
columns: {input: []}
    9:20: data.columns.input: expected at least one item, got an empty list
arrays: {input: x}
    9:3: data.arrays: only for the formats npz and safetensors, but format is csv
splits: {train: {indices: {array: a}}}
    9:20: data.splits.train.indices: only for the formats npz and safetensors, but format is csv
splits: {train: {n: 0}}
    9:23: data.splits.train.n: expected a number above 0, got the number 0
splits: {train: {n: 1.5}}
    9:23: data.splits.train.n: expected a whole number, got the number 1.5
splits: {train: {seed: -1}}
    9:26: data.splits.train.seed: expected a number of at least 0, got the number -1
splits: {train: {same_as: test, n: 3}, test: {}}
    9:20: data.splits.train.same_as: same_as excludes other keys; remove n
splits: {train: {}, reference: {same_as: test}}
    9:44: data.splits.reference.same_as: there is no split 'test'
splits: {train: {same_as: test}, test: {same_as: train}}
    9:29: data.splits.train.same_as: same_as leads in a circle: train -> test -> train
splits: {train: {same_as: ood}, ood: {path: b.csv}}
    9:29: data.splits.train.same_as: unknown value "ood"; available: reference, test, train, validation
splits: {ood: {}}
    9:17: data.splits.ood.path: this key is required, but missing (or give it rows or indices of its own)
splits: {ood: b.csv}
    9:17: data.splits.ood: expected a mapping, got the text "b.csv"
splits: {ood: {pt: b.csv}}
    9:18: data.splits.ood.pt: unknown key; did you mean 'path'? available: arrays, indices, n, path, rows, same_as, seed
splits: {ood: {near: {n: 3}}}
    9:24: data.splits.ood.near.path: this key is required, but missing (or give it rows or indices of its own)
splits: {ood: {near: {path: b.csv}, far: c.csv}}
    9:44: data.splits.ood.far: expected a mapping, got the text "c.csv"
splits: {ood: {near: {path: b.csv, seed: -1}}}
    9:44: data.splits.ood.near.seed: expected a number of at least 0, got the number -1
splits: {ood: {'a b': {path: b.csv}}}
    9:18: data.splits.ood.a b: expected a name of at most 40 letters, digits and _, with no digit first
splits: {test: {clean: {rows: '1:'}, shifted: b.csv}}
    9:49: data.splits.test.shifted: expected a mapping, got the text "b.csv"
splits: {test: {'a/b': {path: b.csv}}}
    9:19: data.splits.test.a/b: expected a name of at most 40 letters, digits and _, with no digit first
splits: {test: {clean: {same_as: train}}}
    9:27: data.splits.test.clean.same_as: a set with a name has rows of its own: path, rows or indices
splits: {test: {clean: {path: b.csv, arrays: {input: x}}}}
    9:40: data.splits.test.clean.arrays: only for the formats npz and safetensors, but format is csv
splits: {test: {clean: {rows: '1:'}, path: b.csv}}
    9:19: data.splits.test.clean: unknown key; available: arrays, indices, n, path, rows, same_as, seed
splits: {ood: {same_as: train}}
    9:18: data.splits.ood.same_as: rows of another split are not out of distribution
splits: {ood: {near: {path: b.csv, arrays: {input: x}}}}
    9:38: data.splits.ood.near.arrays: only for the formats npz and safetensors, but format is csv
"""

# a line added at the top level (line 9, from column 1), and the problem it gives
TOP = """\
posterior: {prior_precision: abc}
    9:30: posterior.prior_precision: expected a number above 0, 'marglik' or {glob: one of them}, got the text "abc"
posterior: {prior_precision: 0}
    9:30: posterior.prior_precision: expected a number above 0, got the number 0
posterior: {prior_precision: .inf}
    9:30: posterior.prior_precision: expected a finite number, got .inf
posterior: {prior_precision: 1e999}
    9:30: posterior.prior_precision: expected a finite number, got 1e999
posterior: {prior_precision: {a: -1}}
    9:34: posterior.prior_precision.a: expected a number above 0, got the number -1
posterior: {noise_variance: {from: train}}
    9:36: posterior.noise_variance.from: unknown value "train"; available: test, validation
posterior: {noise_variance: {from: validation}}
    9:36: posterior.noise_variance.from: there is no split 'validation'
posterior: {noise_variance: {from: test}}
    9:36: posterior.noise_variance.from: there is no split 'test'
posterior: {noise_variance: {from_: test}}
    9:30: posterior.noise_variance.from_: unknown key; did you mean 'from'? available: from
posterior: {hessian: {sampled: 8}}
    9:22: posterior.hessian: sampled is only for task multiclass, but task is regression
posterior: {hessian: 8}
    9:22: posterior.hessian: expected 'exact' or {sampled: NUMBER}, got the number 8
posterior: {hessian: {}}
    9:22: posterior.hessian.sampled: this key is required, but missing
oracle: {}
    9:9: oracle: expected weights or predictions
oracle: {array: f}
    9:10: oracle.array: only together with predictions
oracle: {predictions: p.npz, weights: {path: a}}
    9:9: oracle: expected either a model or predictions, got predictions and weights
oracle: {wrap: none}
    9:9: oracle.weights: this key is required, but missing (only exported and huggingface bring their own)
"""


def pairs(table: str, add: Callable[[str], str]) -> list[tuple[str, str]]:
    lines = table.splitlines()
    return [(add(line), problem.strip()) for line, problem in zip(lines[::2], lines[1::2], strict=True)]


VALUES = [*CHANGED, *pairs(DATA, with_data), *pairs(TOP, with_top)]


@pytest.mark.parametrize(("text", "expected"), VALUES, ids=[expected for _, expected in VALUES])
def test_one_mistake_gives_one_line(tmp_path: Path, text: str, expected: str) -> None:
    assert problems(tmp_path, text) == [expected]


@pytest.mark.parametrize("noise", ["0.5", "marglik", "{from: test}"])
def test_a_network_that_predicts_its_noise_takes_none(tmp_path: Path, noise: str) -> None:
    text = changed("regression", "regression\noutputs: mean-and-log-variance")
    (line,) = problems(tmp_path, text + f"posterior: {{noise_variance: {noise}}}\n")
    expected = "posterior.noise_variance: each row has its own noise variance, because outputs is mean-and-log-variance"
    assert line == f"10:29: {expected}"
    path = tmp_path / "sublaplace.yaml"
    path.write_text(text + "posterior: {noise_variance: auto}\n")
    assert load_spec(path).spec.outputs == "mean-and-log-variance"


@pytest.mark.parametrize(
    "rows",
    ["5", "a:b", "1:2:0", "1:2: 00 ", "1:2:-1", "1:2:3:4", "", "1.0:2", "1:99999999999999999999", f"::{'0' * 5000}1"],
    ids=lambda rows: rows[:20],
)
def test_rows_are_slices(tmp_path: Path, rows: str) -> None:
    (line,) = problems(tmp_path, with_data(f'splits: {{train: {{rows: "{rows}"}}}}'))
    assert line.startswith("9:26: data.splits.train.rows: expected a slice like '0:353'")
    with pytest.raises(ValidationError):  # from Python too
        SplitSpec(rows=rows)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        (SplitSpec, {"rows": "0:5", "indices": {"array": "a"}}),
        (SplitSpec, {"n": -1}),
        (SplitSpec, {"same_as": "tst"}),
        (Scale, {"scale": INF}),
        (Permute, {"permute": [0, 0, 1]}),
        (Moments, {"mean": [NAN], "std": 1}),
        (Moments, {"mean": 0, "std": [1, INF]}),
        (FixedMeanStd, {"mean": 0, "std": -1.0}),
        (FixedMeanStd, {"mean": [1, NAN], "std": 1}),
        (FixedMeanStd, {"mean": 0, "std": INF}),
    ],
)
def test_values_that_the_data_readers_rely_on(part: type[Part], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        part(**values)


@pytest.mark.parametrize("classes", ["[]", "[1, 1]", "[-1]", "[true]", "3"])
def test_classes(tmp_path: Path, classes: str) -> None:
    text = changed("  weights", f"  wrap: {{binary-logodds: {{classes: {classes}}}}}\n  weights")
    (line,) = problems(tmp_path, changed("regression", "binary", text))
    assert line.startswith(("5:36: model.wrap.binary-logodds.classes", "5:37: model.wrap.binary-logodds.classes[0]"))


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ("5", "9:7: gate: expected a mapping such as {w2: {max: 0.02}}, got the number 5"),
        ("{}", None),
        ("{w2: {}}", "9:12: gate.w2: expected min, max or max_regression"),
        ("{w2: {max: .nan}}", "9:18: gate.w2.max: "),
        ("{w2: {max: -.inf}}", "9:18: gate.w2.max: "),
        ("{w2: {max: x}}", '9:18: gate.w2.max: expected a number, got the text "x"'),
        ("{w2: {maxx: 1}}", "9:13: gate.w2.maxx: unknown key; did you mean 'max'?"),
        ("{'ful: w2': {max: 1}}", "9:8: gate.ful: w2: unknown row 'ful'; did you mean 'full'?"),
        ("{'full: nlll': {max: 1}}", "9:8: gate.full: nlll: unknown metric; did you mean 'nll'?"),
        ("{nlll: {max: 1}}", "9:8: gate.nlll: unknown metric; did you mean 'nll'?"),
        ("{w2: {max_regression: 5 %}}", None),
        ("{w2: {max_regression: 5%, max: 1, min: 0}}", None),
        ("{w2: {max_regression: -1}}", "9:29: gate.w2.max_regression: expected a finite number of at least 0"),
        ("{w2: {max_regression: x%}}", "9:29: gate.w2.max_regression: expected a finite number of at least 0"),
        ("{ipv: {max_regression: 1}}", "9:13: gate.ipv: it has no better direction"),
        ("{w2: {min: 2, max: 1}}", "9:18: gate.w2.min: 2 is more than max 1"),
    ],
)
def test_gates(tmp_path: Path, gate: str, expected: str | None) -> None:
    if expected is None:
        path = tmp_path / "sublaplace.yaml"
        path.write_text(with_top(f"gate: {gate}"))
        load_spec(path)
        return
    (line,) = problems(tmp_path, with_top(f"gate: {gate}"))
    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("text", "start", "near"),
    [
        (changed("task", "taks"), "2:1: taks: unknown key", "task"),
        (changed("regression", "regresion"), '2:7: task: unknown value "regresion"', "regression"),
        (changed("arch: mlp", "arch: mpl"), '4:17: model.build.arch: unknown value "mpl"', "mlp"),
        (changed("arch:", "archh:"), "4:11: model.build.archh: unknown key", "arch"),
        (changed("csv\n  p", "cvs\n  p"), '7:11: data.format: unknown value "cvs"', "csv"),
        (
            with_data("transforms: [{permutee: [0]}]"),
            "9:17: data.transforms[0].permutee: unknown transform",
            "permute",
        ),
        (changed("weights:", "weight:"), "5:3: model.weight: unknown key", "weights"),
        (with_data("split: {}"), "9:3: data.split: unknown key", "splits"),
    ],
)
def test_suggestions(tmp_path: Path, text: str, start: str, near: str) -> None:
    (line,) = problems(tmp_path, text)
    assert line.startswith(f"{start}; did you mean '{near}'? available: ")


def test_the_tasks_are_those_of_the_catalog(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, changed("regression", "poison"))
    assert line == f'2:7: task: unknown value "poison"; available: {", ".join(sorted(TASKS))}'
    for task in TASKS:
        path = tmp_path / "sublaplace.yaml"
        path.write_text(changed("regression", task))
        assert load_spec(path).spec.task == task


@pytest.mark.parametrize("task", ["[]", "{a: 1}", "7", "~"])
def test_a_task_of_another_type_is_one_problem(tmp_path: Path, task: str) -> None:
    text = with_top("posterior: {noise_variance: 0.5}")
    (line,) = problems(tmp_path, changed("task: regression", f"task: {task}", text))
    assert line.startswith("2:7: task: expected ")


def test_all_problems_at_once_in_order(tmp_path: Path) -> None:
    text = """\
version: 2
task: regression
task: binary
model:
  build: {arch: mlp}
  weights: {path: 5, strikt: true}
data:
  columns: {target: 1.5}
posterior: {rescale: sacle, rescale: 3, noise_variance: x}
gate: 1
"""
    starts = [line.split(" ")[0:2] for line in problems(tmp_path, text)]
    assert starts == [
        ["1:10:", "version:"],
        ["3:1:", "task:"],
        ["6:19:", "model.weights.path:"],
        ["6:22:", "model.weights.strikt:"],
        ["8:3:", "data.format:"],
        ["8:3:", "data.path:"],
        ["8:21:", "data.columns.target:"],
        ["9:22:", "posterior.rescale:"],
        ["9:29:", "posterior.rescale:"],
        ["9:57:", "posterior.noise_variance:"],
        ["10:7:", "gate:"],
    ]
