"""The spec: what a valid one parses to, how it is found, and where its paths may lead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spec_texts import MINIMAL, changed, load, with_data

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data.datasets import origin_of
from sublaplace_cli.files.spec.data import DataSpec
from sublaplace_cli.files.spec.loading import find_spec
from sublaplace_cli.files.spec.models import NoiseFrom, Spec
from sublaplace_cli.files.spec.preparing import FixedMeanStd, Normalise, Permute, Scale

# the example of the contract, without what is not built yet
FULL = """\
version: 1
task: regression                  # regression | binary | multiclass
model:
  build: {arch: mlp, args: {in: 10, hidden: [50, 50], out: 1, act: relu}}
  weights: {path: model.safetensors, key: net, strip_prefix: "net.", rename: {a: b}, strict: false}
data:
  format: csv
  path: diabetes.csv
  columns: {target: target, input: rest}
  standardise: {input: from-train, target: from-train}
  transforms: [{scale: 0.003921568627}, {permute: [2, 0, 1]}, {normalise: {mean: [5], std: 2, axis: 0}}]
  splits:
    train: {rows: "0:353", n: 300, seed: 0}
    test: {rows: "353:"}
    reference: {same_as: train}
posterior:
  prior_precision: 1.0
  noise_variance: auto
  rescale: none
oracle: {weights: {path: oracle.safetensors}}
"""


# ---------------------------------------------------------------- what is accepted


def test_the_full_example(tmp_path: Path) -> None:
    loaded = load(tmp_path, FULL)
    spec = loaded.spec
    assert (spec.version, spec.task) == (1, "regression")
    assert spec.model.build.arch == "mlp"
    assert spec.model.build.args == {"in": 10, "hidden": [50, 50], "out": 1, "act": "relu"}
    weights = spec.model.weights
    assert weights is not None
    assert weights.rename == {"a": "b"}
    assert weights.strict is False
    assert (weights.path, weights.key, weights.strip_prefix) == ("model.safetensors", "net", "net.")
    assert spec.data.columns is not None
    assert spec.data.columns.target == "target"
    assert spec.data.standardise.input == spec.data.standardise.target == "from-train"
    scale, permute, normalise = spec.data.transforms
    assert isinstance(scale, Scale)
    assert scale.scale == 0.003921568627
    assert isinstance(permute, Permute)
    assert permute.permute == [2, 0, 1]
    assert isinstance(normalise, Normalise)
    assert (normalise.normalise.mean, normalise.normalise.std, normalise.normalise.axis) == ([5.0], 2.0, 0)
    splits = spec.data.splits
    assert splits is not None
    assert splits.train
    assert splits.test
    assert splits.reference
    assert (splits.train.rows, splits.train.n, splits.train.seed) == ("0:353", 300, 0)
    assert splits.test.rows == "353:"
    assert splits.reference.same_as == "train"
    assert splits.validation is None
    assert (spec.posterior.prior_precision, spec.posterior.noise_variance) == (1.0, "auto")
    assert spec.oracle is not None
    assert spec.oracle.weights is not None
    assert spec.oracle.as_model(spec.model) == spec.model.model_copy(update={"weights": spec.oracle.weights})
    assert loaded.text == FULL
    assert len(loaded.sha256) == 64
    assert loaded.folder == tmp_path


def test_defaults(tmp_path: Path) -> None:
    spec = load(tmp_path, MINIMAL).spec
    assert spec.posterior.prior_precision == 1.0
    assert spec.posterior.rescale == "none"
    assert spec.oracle is None
    assert spec.model.wrap is None
    assert spec.data.splits is None
    assert spec.data.standardise.input == "none"
    assert spec.data.transforms == []


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e3", 1000.0), ("1e-3", 0.001), (".5", 0.5), ("2", 2.0), ("{'*.bias': 1e3}", {"*.bias": 1000.0})],
)
def test_numbers(tmp_path: Path, written: str, value: object) -> None:
    loaded = load(tmp_path, MINIMAL + f"posterior: {{prior_precision: {written}}}\n")
    assert loaded.spec.posterior.prior_precision == value


def test_plain_scalars_follow_the_core_rules_of_yaml_1_2(tmp_path: Path) -> None:
    args = "{a: yes, b: on, c: 1:20, d: 2001-1-1, e: true, f: ~, g: 0x1F, h: 0o17, i: '1', j: 010, k: 1_0}"
    spec = load(tmp_path, changed("{in: 10, hidden: [50, 50], out: 1}", args)).spec
    expected = ["yes", "on", "1:20", "2001-1-1", True, None, 31, 15, "1", 10, "1_0"]
    assert list(spec.model.build.args.values()) == expected


def test_rows_need_no_quotes(tmp_path: Path) -> None:
    splits = load(tmp_path, with_data("splits: {train: {rows: 0:353}}")).spec.data.splits
    assert splits is not None
    assert splits.train is not None
    assert splits.train.rows == "0:353"


def test_wraps(tmp_path: Path) -> None:
    text = changed("task: regression", "task: binary") + "oracle: {weights: {path: o.pt}, wrap: none}\n"
    text = changed("data:\n", "  wrap: {binary-logodds: {classes: [5, 6]}}\ndata:\n", text)
    spec = load(tmp_path, text).spec
    assert spec.model.wrap is not None
    assert spec.model.wrap.binary_logodds.classes == [5, 6]
    assert spec.oracle is not None
    assert spec.oracle.wrap is None
    assert spec.oracle.as_model(spec.model).wrap is None


def test_an_oracle_takes_over_build_and_wrap_unless_it_names_its_own(tmp_path: Path) -> None:
    text = changed("task: regression", "task: binary")
    text = changed("data:\n", "  wrap: {binary-logodds: {classes: [5, 6]}}\ndata:\n", text)
    spec = load(tmp_path, text + "oracle: {weights: {path: o.pt}}\n").spec
    assert spec.oracle is not None
    network = spec.oracle.as_model(spec.model)
    assert (network.build, network.wrap) == (spec.model.build, spec.model.wrap)
    assert network.weights == spec.oracle.weights
    own = "oracle: {build: {exported: o.pt2}, wrap: {binary-logodds: {classes: [1]}}}\n"
    oracle = load(tmp_path, text + own).spec.oracle
    assert oracle is not None
    network = oracle.as_model(spec.model)
    assert (network.build, network.weights, network.wrap) == (oracle.build, None, oracle.wrap)


@pytest.mark.parametrize(
    "line",
    [
        "build: {import: 'pkg.mod:make'}\n  weights: {path: a.pt}\n  wrap: none",
        "build: {exported: model.pt2}\n  wrap: null",
        "build: {exported: model.pt2}\n  weights: {path: a.pt}",
    ],
)
def test_other_models(tmp_path: Path, line: str) -> None:
    head, rest = MINIMAL.split("  build", 1)
    load(tmp_path, f"{head}  {line}\ndata:{rest.split('data:')[1]}")


@pytest.mark.parametrize(
    "line",
    [
        "columns: {target: [0, b], input: [1, 2]}",
        "standardise: none",
        "standardise: {input: {mean: [1, 2], std: [1, 0.5]}}",
        "splits: {train: {rows: '-5:'}, test: {rows: '::2'}, reference: {same_as: test}}",
        "splits: {reference: {same_as: train}}",
        "transforms: []",
    ],
)
def test_other_data(tmp_path: Path, line: str) -> None:
    load(tmp_path, with_data(line))


@pytest.mark.parametrize(
    ("ood", "names"),
    [
        ("{path: b.csv, n: 3}", ["ood"]),
        ("{rows: '4:'}", ["ood"]),
        ("{ood: {path: b.csv}}", ["ood.ood"]),
        ("{near: {path: b.csv}, train: {path: c.csv, rows: '0:9'}}", ["ood.near", "ood.train"]),
        ("", []),
    ],
)
def test_one_set_of_ood_rows_or_several_by_name(tmp_path: Path, ood: str, names: list[str]) -> None:
    data = load(tmp_path, with_data(f"splits: {{test: {{rows: '2:'}}, ood: {ood}}}")).spec.data
    assert list(data.ood_sets) == names
    assert list(data.ood_sets.values()) == [name.removeprefix("ood.") for name in names]
    assert list(data.named_splits) == ["test", *names]
    again = DataSpec.model_validate(data.model_dump(by_alias=True))
    assert again == data


@pytest.mark.parametrize(
    ("test", "sets"),
    [
        ("{rows: '2:'}", {"test": None}),
        ("{path: b.csv, n: 3}", {"test": None}),
        ("{clean: {rows: '2:'}, shifted: {path: b.csv}}", {"test.clean": "clean", "test.shifted": "shifted"}),
        ("{train: {path: b.csv}}", {"test.train": "train"}),
        ("", {}),
    ],
)
def test_one_set_of_test_rows_or_several_by_name(tmp_path: Path, test: str, sets: dict[str, str | None]) -> None:
    data = load(tmp_path, with_data(f"splits: {{test: {test}, ood: {{rows: '1:'}}}}")).spec.data
    assert data.test_sets == sets
    assert list(data.named_splits) == [*sets, "ood"]
    assert DataSpec.model_validate(data.model_dump(by_alias=True)) == data
    if sets:
        assert origin_of(data, "test") == next(iter(sets))


def test_arrays_and_paths_of_splits(tmp_path: Path) -> None:
    data = """\
  format: npz
  arrays: {input: {a: x1, b: x2}, target: y}
  splits:
    train: {path: a.npz, indices: {array: idx, row: 0}}
    test: {path: b.npz, arrays: {input: [u, v]}}
"""
    spec = load(tmp_path, MINIMAL.split("  format")[0] + data).spec
    assert spec.data.arrays is not None
    assert spec.data.arrays.input == {"a": "x1", "b": "x2"}
    assert spec.data.splits is not None
    assert spec.data.splits.test is not None
    assert spec.data.splits.test.arrays is not None
    assert spec.data.splits.test.arrays.input == ["u", "v"]


def test_noise_from_test_and_fixed_moments(tmp_path: Path) -> None:
    text = with_data("splits: {train: {}, test: {}}") + "posterior: {noise_variance: {from: test}}\n"
    assert load(tmp_path, text).spec.posterior.noise_variance == NoiseFrom.model_validate({"from": "test"})
    fixed = load(tmp_path, with_data("standardise: {target: {mean: 1, std: 2}}")).spec.data.standardise.target
    assert fixed == FixedMeanStd(mean=1.0, std=2.0)


def test_a_spec_can_be_dumped_and_read_again(tmp_path: Path) -> None:
    spec = load(tmp_path, FULL).spec
    assert Spec.model_validate(spec.model_dump(by_alias=True, exclude_unset=True)) == spec


# ---------------------------------------------------------------- finding, paths, speed


def test_the_nearest_spec_is_found_upward(tmp_path: Path) -> None:
    (tmp_path / "sublaplace.yaml").write_text(MINIMAL)
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "sublaplace.yaml").mkdir()  # a folder of that name is no spec
    assert find_spec(deep) == tmp_path / "sublaplace.yaml"
    (tmp_path / "a" / "sublaplace.yaml").write_text(MINIMAL)
    assert find_spec(deep) == tmp_path / "a" / "sublaplace.yaml"


def test_no_spec_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_spec(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "--spec" in str(caught.value)


def test_paths_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "secret.csv").touch()
    (folder / "link.csv").symlink_to(tmp_path / "secret.csv")
    (folder / "inner.csv").symlink_to(folder / "rows.csv")
    loaded = load(folder, MINIMAL)
    for inside in ("rows.csv", "sub/../rows.csv", "inner.csv", str(folder / "rows.csv"), "not/there"):
        assert loaded.resolve(inside, "data.path", False) == folder / inside
    for outside in (
        "../secret.csv",
        "link.csv",
        str(tmp_path / "secret.csv"),
        "sub/../../x",
        "../project-2/x",
    ):
        with pytest.raises(UserError) as caught:
            loaded.resolve(outside, "data.path", False)
        assert f"{folder / 'sublaplace.yaml'}:8:9: data.path: the path {outside} leads out" in str(caught.value)
        assert "--allow-outside" in str(caught.value)
        assert loaded.resolve(outside, "data.path", True) == folder / outside


def test_a_folder_that_is_itself_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    loaded = load(tmp_path / "alias", MINIMAL)
    assert loaded.resolve("rows.csv", "data.path", False) == tmp_path / "alias" / "rows.csv"


def test_paths_that_cannot_be_followed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    loaded = load(tmp_path, MINIMAL)
    for path in ("loop/x", "a\0b"):
        with pytest.raises(UserError, match=r"unknown\.field: cannot follow the path"):
            loaded.resolve(path, "unknown.field", False)


def test_a_wrong_spec_is_answered_at_once_and_without_torch(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(changed("csv\n", "cvs\n"))
    script = (
        "import sys, pathlib\n"
        "from sublaplace_cli.files.spec.loading import load_spec, SpecError\n"
        "try: load_spec(pathlib.Path(sys.argv[1]))\n"
        "except SpecError: pass\n"
        "else: sys.exit('no error')\n"
        "sys.exit(', '.join({'torch', 'numpy'} & set(sys.modules)) or 0)\n"
    )
    root = Path(__file__).resolve().parents[3]
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "bad.yaml")],
        check=False,
        cwd=root,
        capture_output=True,
        text=True,
    )
    after = os.times()
    assert done.returncode == 0, done.stderr
    # CPU time, not the clock: other work on the machine must not fail this test
    used = after.children_user - before.children_user + after.children_system - before.children_system
    assert used < 0.5
