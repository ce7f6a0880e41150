"""How to add a method, a likelihood, a reference, a metric and a format: one file and one line each, tried on a copy.

The additions below are those that the docstrings of `catalog.py` and its neighbours describe. They go into a copy of
the package, and whole commands run from there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from cli.cli_tools import ENVIRONMENT, Project

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Addition:
    """A new file, and the new line of a table after the line `after`."""

    path: str
    text: str
    table: str
    after: str
    line: str


METHOD = Addition(
    "core/selectors/first_k.py",
    '''"""The first k of the flat parameter vector."""

import torch

from ...errors import UserError
from . import Selection, SelectionProblem, SelectorFacts


def check(facts: SelectorFacts, k: int | None) -> None:
    if k is not None and k > 20:
        raise UserError(f"first-k: {k} is more than 20")


def first_k(problem: SelectionProblem, k: int) -> Selection:
    indices = torch.arange(k, device=problem.score.device)
    return Selection(indices, problem.score[indices])
''',
    "catalog.py",
    "METHODS = {",
    '    "first-k": _selector("first_k", "the first k of the flat parameter vector"),',
)
REFERENCE = Addition(
    "run/references/doubled.py",
    '''"""`doubled`: twice the standard deviation of the full posterior."""

from ...core.prediction import Prediction
from . import ReferenceInputs


def predict(inputs: ReferenceInputs) -> Prediction:
    return Prediction(inputs.name, None, inputs.full.outputs.scaled(4.0), None)
''',
    "catalog.py",
    "METHODS = {",
    '    "doubled": _reference("doubled", "twice the full standard deviation", needs_full=True),',
)
LIKELIHOOD = Addition(
    "core/likelihoods/poisson.py",
    '''"""Counts: y ~ Poisson(exp(f))."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..gaussian import Gaussian
from .reliability import Reliability


@dataclass(frozen=True)
class Poisson:
    noise_variance: ClassVar[None] = None
    calibration_axes: ClassVar[tuple[str, str]] = ("predicted count", "count")
    calibration_counts: ClassVar[str] = "rows"
    risk_label: ClassVar[str] = "mean squared error of the count"

    def with_noise(self, sigma2):
        return self

    def root(self, f):
        return torch.diag_embed(torch.exp(f.double() / 2))

    def kernel_root(self, f):
        return self.root(f)

    def means(self, n_outputs):
        return slice(None)

    def noise(self, outputs):
        return None

    def check_outputs(self, n_outputs):
        pass

    def check_targets(self, targets, rows, n_outputs, split):
        pass

    def with_link(self, link):
        return self

    def fit_terms(self, f, targets):
        return None, -float(self.nll(Gaussian.certain(f), targets).sum())

    def log_probabilities(self, outputs):
        return None

    def nll(self, outputs, targets):
        log_rate = outputs.mean + outputs.variance / 2
        return (torch.exp(log_rate) - targets * log_rate + torch.lgamma(targets + 1)).mean(1)

    def brier(self, probabilities, targets):
        raise TypeError("counts have no class probabilities")

    def calibration(self, outputs, targets):
        rate, count = outputs.mean.exp().flatten().tolist(), targets.flatten().tolist()
        return Reliability(rate, count, count, count, [len(count)])

    def uncertainty(self, outputs):
        return outputs.variance.mean(1)

    def risk(self, outputs, targets):
        return (targets - outputs.mean.exp()).square().mean(1)

    def row_columns(self, outputs):
        return {}
''',
    "catalog.py",
    "TASKS = {",
    '    "poisson": Task("sublaplace_cli.core.likelihoods.poisson:Poisson"),',
)
METRIC = Addition(
    "core/max_std.py",
    '''"""The largest standard deviation."""

from .prediction import Comparison, Prediction


def max_std(prediction: Prediction, known: Comparison) -> float:
    return float(prediction.std.max())
''',
    "results/metric_table.py",
    "_TABLE = (",
    '    Metric("max_std", "lower", "largest σ", column=Column(), module="sublaplace_cli.core.max_std"),',
)
FORMAT = Addition(
    "render/names.py",
    '''"""The names of the rows and their mean standard deviation."""


def names(answer):
    return "\\n".join(f"{row.name}: {row.value('mean_std'):.17g}" for row in answer.rows)
''',
    "catalog.py",
    "FORMATS = {",
    '    "names": "sublaplace_cli.render.names:names",',
)
ADDITIONS = (METHOD, REFERENCE, LIKELIHOOD, METRIC, FORMAT)
COMMON = {"dtype": "float64", "k": "5"}
RUNS = {
    "methods": {"method": "first-k,doubled,full", **COMMON},
    "poisson": {"method": "first-k,gradient,full", **COMMON},
    "gate": {"method": "first-k", "fail_if": ["max_std > 1e9", "max_std < 1e9"], **COMMON},
    "sweep": {"method": "first-k", "seeds": [1, 2], **COMMON},
    "refused": {"method": "first-k", "dtype": "float64", "k": "21"},
}
SCRIPT = """
import json, sys
from pathlib import Path
import sublaplace_cli
results = {"package": sublaplace_cli.__file__}
for name, (spec, options) in json.load(sys.stdin).items():
    try:
        results[name] = sublaplace_cli.run_command("evaluate", spec=Path(spec), **options)
    except sublaplace_cli.SublaplaceError as error:
        results[name] = str(error)
print(json.dumps(results))
"""


def counts(folder: Path) -> Project:
    """A project of the new task: targets 0, 1, 2, …"""
    project = Project(folder)
    project.y = np.arange(len(project.x))[:, None] * 7 % 5
    project.write_csv("data.csv", ["a", "b", "c", "y0"], np.hstack([project.x, project.y]))
    return project.use(task="poisson")


@dataclass(frozen=True)
class Extended:
    """A copy of the package with all additions, two projects, and the results of some runs."""

    package: Path
    regression: Project
    poisson: Project
    results: dict[str, Any]

    def call(self, *arguments: str, cwd: Path | None = None, **more: Any) -> str:
        folder = self.regression.folder if cwd is None else cwd
        return _python(self.package.parent, folder, "-m", "sublaplace_cli", *arguments, **more)

    def row(self, run: str, method: str) -> dict[str, Any]:
        return next(row for row in self.results[run]["rows"] if row["method"] == method)


def _python(path: Path, cwd: Path, *arguments: str, **more: Any) -> str:
    environment = {**ENVIRONMENT, "PYTHONPATH": str(path), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def extended(tmp_path_factory) -> Extended:
    folder = tmp_path_factory.mktemp("extended")
    package = folder / "sublaplace_cli"
    shutil.copytree(ROOT / "sublaplace_cli", package, ignore=shutil.ignore_patterns("__pycache__"))
    for addition in ADDITIONS:
        assert not (package / addition.path).exists()
        (package / addition.path).write_text(addition.text)
        table = package / addition.table
        text = table.read_text()
        assert text.count(f"\n{addition.after}\n") == 1
        table.write_text(text.replace(f"\n{addition.after}\n", f"\n{addition.after}\n{addition.line}\n"))
    regression, poisson = Project(folder / "regression"), counts(folder / "poisson")
    asked = {
        name: (str((poisson if name == "poisson" else regression).folder / "sublaplace.yaml"), options)
        for name, options in RUNS.items()
    }
    results = json.loads(_python(folder, folder, "-c", SCRIPT, input=json.dumps(asked)))
    assert Path(results["package"]).is_relative_to(folder)
    return Extended(package, regression, poisson, results)


def dense(project: Project, H_of: Any, S: torch.Tensor) -> torch.Tensor:
    """Standard deviations of the test rows over S, by the reference."""
    x = torch.from_numpy(project.x)
    f, J = reference.jacobian(project.model.double(), x, len(x))
    omega = reference.precision(J[:22], H_of(f[:22]), torch.ones(project.size, dtype=torch.float64))
    return reference.subnet_variance(J[22:], omega, S).sqrt()


def test_a_method(extended):
    project, row = extended.regression, extended.row("methods", "first-k")
    noise = extended.results["methods"]["noise_variance"]
    std = dense(project, lambda f: reference.output_hessian("regression", f, noise), torch.arange(5))
    assert row["k"] == 5
    assert row["mean_std"] == pytest.approx(float(std.mean()), rel=1e-9)
    assert extended.results["refused"] == "first-k: 21 is more than 20"
    assert "first-k" in extended.call("evaluate", "--help")


def test_a_reference(extended):
    doubled, full = extended.row("methods", "doubled"), extended.row("methods", "full")
    assert doubled["k"] is None
    assert doubled["mean_std"] == pytest.approx(2 * full["mean_std"], rel=1e-12)
    assert doubled["w2"] == pytest.approx(full["mean_std"], rel=1e-12)
    assert "doubled" in extended.call("evaluate", "--help")


def test_a_likelihood(extended):
    project = extended.poisson
    assert extended.results["poisson"]["task"] == "poisson"
    assert extended.results["poisson"]["noise_variance"] is None
    f = project.model.double()(torch.from_numpy(project.x[22:])).detach()
    y = torch.from_numpy(project.y[22:]).double()
    for method, S in [("first-k", torch.arange(5)), ("full", torch.arange(project.size))]:
        row, std = extended.row("poisson", method), dense(project, lambda f: f.exp().unsqueeze(2), S)
        assert row["mean_std"] == pytest.approx(float(std.mean()), rel=1e-9)
        nll = -torch.distributions.Poisson(torch.exp(f + std.square() / 2)).log_prob(y)
        assert row["nll"] == pytest.approx(float(nll.mean()), rel=1e-9)
        assert row["aurc"] == pytest.approx(reference.aurc(std[:, 0], (y - f.exp())[:, 0].square()), rel=1e-9)
        assert row["accuracy"] is None
        assert row["why"]["accuracy"]


def test_a_metric(extended):
    noise = extended.results["methods"]["noise_variance"]
    hessian = lambda f: reference.output_hessian("regression", f, noise)  # noqa: E731
    std = dense(extended.regression, hessian, torch.arange(5))
    assert extended.row("methods", "first-k")["max_std"] == pytest.approx(float(std.max()), rel=1e-9)
    checks = extended.results["gate"]["gate"]["checks"]
    assert [check["passed"] for check in checks] == [True, False]
    (mean,) = extended.results["sweep"]["mean"]
    assert mean["max_std"] == pytest.approx(float(std.max()), rel=1e-9)
    assert mean["max_std_se"] == 0.0
    table = extended.call(*["evaluate", "--method", "first-k", "--k", "5", "--dtype", "float64", "--format", "table"])
    assert "max_std" in table.replace("\n", "")
    assert f"{float(std.max()):.4g}" in table


def test_a_format(extended):
    row = extended.row("methods", "first-k")
    text = extended.call(*["evaluate", "--method", "first-k", "--k", "5", "--dtype", "float64", "--format", "names"])
    assert text == f"first-k (k = 5): {row['mean_std']:.17g}\n"


def test_the_copy_needs_nothing_else(extended):
    """Besides the new files, only two tables differ from the package, by one line per addition."""
    changed = {}
    for path in extended.package.rglob("*.py"):
        name = path.relative_to(extended.package).as_posix()
        original = ROOT / "sublaplace_cli" / name
        old = original.read_text().splitlines() if original.exists() else None
        if old != (new := path.read_text().splitlines()):
            changed[name] = len(new) - len(old) if old is not None else None
    tables = {"catalog.py": 4, "results/metric_table.py": 1}
    assert changed == {**tables, **{addition.path: None for addition in ADDITIONS}}
