"""Every number of the core on the second device and on the CPU; prints their differences as JSON.

    python tests/device/check_core.py [CASE …]

In a process of its own, because registering a device is for good.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "device")]

import torch  # noqa: E402
from cases import CASES, Case  # noqa: E402
from second_device import DeviceTensor, MixedDevicesError, SecondDevice, install  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from sublaplace_cli.catalog import METHODS, TASKS, load, task_of  # noqa: E402
from sublaplace_cli.core.features.beside import Beside  # noqa: E402
from sublaplace_cli.core.features.sketch import Sketch  # noqa: E402
from sublaplace_cli.core.features.subset import Subset  # noqa: E402
from sublaplace_cli.core.gaussian import Gaussian  # noqa: E402
from sublaplace_cli.core.jacobian import conv  # noqa: E402
from sublaplace_cli.core.jacobian.capture import Capture, prepare_capture  # noqa: E402
from sublaplace_cli.core.jacobian.rows import HeldJacobian, Jacobian, RecomputedJacobian  # noqa: E402
from sublaplace_cli.core.likelihoods import Likelihood  # noqa: E402
from sublaplace_cli.core.linalg import QR_CONDITION  # noqa: E402
from sublaplace_cli.core.metrics import NotApplicable  # noqa: E402
from sublaplace_cli.core.network.forward import Inputs, last_linear, map_inputs, row_count  # noqa: E402
from sublaplace_cli.core.network.layout import Layout  # noqa: E402
from sublaplace_cli.core.omega.precision import Precision  # noqa: E402
from sublaplace_cli.core.omega.row_sums import own_products, squared_gradients  # noqa: E402
from sublaplace_cli.core.posterior.bounds import require_not_larger  # noqa: E402
from sublaplace_cli.core.posterior.diagonal import DiagonalPosterior  # noqa: E402
from sublaplace_cli.core.posterior.features import fit_features  # noqa: E402
from sublaplace_cli.core.posterior.full import fit_full  # noqa: E402
from sublaplace_cli.core.posterior.path import fit_subnet  # noqa: E402
from sublaplace_cli.core.prediction import Comparison, FullNumbers, Prediction  # noqa: E402
from sublaplace_cli.core.selectors import SelectionProblem, checked, greedy  # noqa: E402
from sublaplace_cli.core.selectors.by_name import by_name  # noqa: E402
from sublaplace_cli.results.metric_table import METRICS  # noqa: E402

CPU = torch.device("cpu")
MEMORY = 2**18  # little enough for several tiles of rows, enough for the matrices
ROWS = 8
FEW = 40  # parameters of the sub-networks
CHECKED = {
    "mlp": ["equal"],
    "mlp-3-outputs": ["tiny"],
    "mlp-own-noise": ["equal"],
    "conv-binary": ["equal"],
    "conv-multiclass": ["unequal"],
    "attention": ["equal"],
    "tied": ["unequal"],
    "two-inputs": ["equal"],
    "tokens": ["equal", "unequal"],
}  # the priors of each case
TINY_PRIOR = 1e-9  # takes the fits to QR and the variances to the residual form


class Tokens(nn.Module):
    """Layers with several positions per row, and one of every kind that has a formula; nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 6, padding_idx=0)
        self.norm = nn.LayerNorm(6)
        self.wide = nn.Linear(6, 20)
        self.conv = nn.Conv1d(20, 4, 3, padding=1, groups=2)
        self.groups = nn.GroupNorm(2, 4)
        self.batch = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        h = torch.tanh(self.wide(self.norm(self.embed(tokens))))
        h = self.groups(self.conv(h.transpose(1, 2)))
        return self.head(torch.relu(self.batch(h.mean(2))))


TOKENS = Case("tokens", "regression", Tokens, lambda n: torch.randint(0, 13, (n, 5)), n_outputs=2)


class Numbers(dict[str, Tensor]):
    """What was computed, by name; all of it must lie on the device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def put(self, name: str, value: Tensor | float | None) -> None:
        if isinstance(value, Tensor):
            assert value.device.type == self.device.type, f"{name} lies on {value.device}"
            assert isinstance(value, DeviceTensor) == (self.device.type != "cpu"), name
        self[name] = torch.as_tensor(math.nan if value is None else value).cpu().double()


def numbers(case: Case, made: tuple, v: Tensor, device: torch.device) -> Numbers:
    """All that the core computes for one case, from what `case.make()` made and a prior."""
    model, train, _, test, y_test = made
    model, y_test, v = model.to(device), y_test.to(device), v.to(device)
    train, test = (map_inputs(lambda t: t.to(device), rows) for rows in (train, test))
    layout = Layout.of(model)
    capture = prepare_capture(model, layout, train, MEMORY)
    found = Numbers(device)
    found.put("layers with a formula", float(len(capture.layers)))
    found.put("batched", float(capture.batched))
    for name, rows in (("train", train), ("test", test)):
        captured = capture(rows)
        found.put(f"outputs {name}", captured.f)
        for block in captured.blocks:
            for key, tensor in block.tensors().items():
                found.put(f"block {block.start} {key} {name}", tensor)
            found.put(f"block {block.start} dense {name}", block.dense().values)
    sigma2 = 0.3 if case.task == "regression" else 1.0
    likelihood = load(task_of(case.task, case.outputs).entry)().with_noise(sigma2)
    S = torch.randperm(layout.size, generator=torch.Generator().manual_seed(1))[:FEW].to(device)
    for form, make in {"kept": kept, "expanded": expanded, "recomputed": recomputed}.items():
        held, held_test = make(capture, train), make(capture, test)
        precision = Precision(held, likelihood.root(held.outputs), v, MEMORY)
        _results(found, f"{form} ", precision, held_test, S)
        if form == "kept":
            names = tuple(last_linear(model, train))
            _selectors(found, precision, layout.flatten(model), names)
            _posteriors(found, likelihood, precision, held_test, S, y_test)
    return found


def _results(found: Numbers, form: str, precision: Precision, test: Jacobian, S: Tensor) -> None:
    found.put(form + "root", precision.root)
    found.put(form + "data diagonal", precision.data_diagonal())
    found.put(form + "unweighted", squared_gradients(precision.jacobian, None, MEMORY))
    for way, weight in (("", conv.SINGLE_COLUMN_COST), ("single ", 0)):  # of a convolution, also each column by itself
        with mock.patch.object(conv, "SINGLE_COLUMN_COST", weight):
            found.put(f"{form}{way}columns", precision.columns(S))
    found.put(form + "gram", precision.gram())
    cross = precision.cross_gram(test)
    found.put(form + "cross gram", cross)
    found.put(form + "products", own_products(test, precision.prior, MEMORY))
    chosen = torch.arange(0, len(test.outputs), 2, device=cross.device)
    w = cross.reshape(len(cross), *test.outputs.shape)[:, chosen].flatten(1)
    found.put(form + "system residual", precision.system_residual(test, chosen, w))
    found.put(form + "residual products", precision.residual_products(test, chosen, w))


def _selectors(found: Numbers, precision: Precision, theta: Tensor, names: tuple[str, ...]) -> None:
    diagonal = precision.data_diagonal()
    p = precision.layout.size
    problem = SelectionProblem(precision, diagonal, diagonal, theta, names, seed=5)
    entries = {name: method.entry for name, method in METHODS.items() if method.kind == "selector"}
    answers = {name: load(entry)(problem, min(FEW, p)) for name, entry in entries.items() if name != "greedy"}
    answers["names:*"] = by_name(problem, "*")
    for k, pool in (
        (precision.n_rows // 2, "all"),
        (3, "2k"),
        (precision.n_rows // 2 + 1, "all"),
    ):  # primal, pooled, dual
        answers[f"greedy {k} {pool}"] = load(entries["greedy"])(replace(problem, pool=pool), min(k, p))
    for name, selection in answers.items():
        found.put(f"{name} indices", checked(selection.indices, p, name))
        found.put(f"{name} values", selection.values)


def _posteriors(
    found: Numbers, likelihood: Likelihood, precision: Precision, test: Jacobian, S: Tensor, y: Tensor
) -> None:
    products = own_products(test, precision.prior, MEMORY)
    full = fit_full(precision)
    covariance = {"full": full.covariance(test, products)}
    found.put("full freedom", full.freedom)
    found.put("full condition", full.condition)
    for form in ("primal", "dual"):
        subnet = fit_subnet(precision, S, form)
        covariance[form] = subnet.covariance(test)
        found.put(f"{form} freedom", subnet.freedom)
        found.put(f"{form} factor", subnet.factor)
        own, full_variance = (covariance[name].diagonal(dim1=1, dim2=2) for name in (form, "full"))
        require_not_larger(own, full_variance, products, form, "full")
    for k in (4, precision.n_rows + 3):
        features = fit_features(precision, Beside(Subset(S), Sketch(k, 1)))
        found.put(f"{k} features factor", features.over_features.factor)
        covariance[f"{k} features"] = features.covariance(test)
    if float(precision.prior[0]) == TINY_PRIOR:
        assert full.condition > QR_CONDITION, "this prior is there to reach the careful forms"
    diagonal = DiagonalPosterior(precision.prior, precision.data_diagonal(), MEMORY)
    covariance["diagonal"] = diagonal.covariance(test)
    found.put("diagonal freedom", diagonal.freedom)
    own_means = Gaussian(test.outputs, covariance["full"]).some(likelihood.means(test.outputs.shape[1]))
    known = Comparison(likelihood, len(precision.root), y, own_means.mean + 0.1, FullNumbers(own_means.std))
    for name, values in covariance.items():
        found.put(f"{name} covariance", values)
        prediction = known.about_targets(Prediction(name, None, Gaussian(test.outputs, values), full.freedom))
        for metric in METRICS.values():
            try:
                found.put(f"{name} {metric.name}", load(f"{metric.module}:{metric.name}")(prediction, known))
            except NotApplicable:
                found.put(f"{name} {metric.name}", None)


def kept(capture: Capture, rows: Inputs) -> HeldJacobian:
    captured = capture(rows)
    return HeldJacobian(capture.layout, captured.f, tuple(captured.blocks))


def expanded(capture: Capture, rows: Inputs) -> HeldJacobian:
    captured = capture(rows)
    return HeldJacobian(capture.layout, captured.f, tuple(block.expanded() for block in captured.blocks))


def recomputed(capture: Capture, rows: Inputs) -> RecomputedJacobian:
    def compute(start: int, stop: int) -> list:
        return capture(map_inputs(lambda t: t[start:stop], rows)).blocks

    rows_per_read = row_count(rows) // 2
    return RecomputedJacobian(capture.layout, capture(rows).f, capture.templates, compute, rows_per_read)


def prior_of(kind: str, p: int) -> Tensor:
    if kind == "unequal":
        return torch.linspace(0.2, 3.0, p, dtype=torch.float64)
    return torch.full((p,), 0.7 if kind == "equal" else TINY_PRIOR, dtype=torch.float64)


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value; infinite where shapes or gaps differ."""
    if found.shape != expected.shape or not torch.equal(found.isnan(), expected.isnan()):
        return math.inf
    if not expected.numel():
        return 0.0
    error, scale = (found - expected).abs().nan_to_num().max(), expected.abs().nan_to_num().max()
    return float(error / scale) if float(error) else 0.0


def refusals(device: torch.device) -> dict[str, bool]:
    """Whether each of these mistakes is noticed."""
    model, train, *_ = next(case for case in CASES if case.name == "mlp").make()
    capture = prepare_capture(model.to(device), Layout.of(model), train.to(device), MEMORY)
    held = kept(capture, train.to(device))
    p, x = capture.layout.size, held.outputs
    regression, binary = (load(TASKS[task].entry)() for task in ("regression", "binary"))
    v, S = prior_of("unequal", p), torch.arange(p)
    good = Precision(held, regression.root(x), v.to(device), MEMORY)
    wrong_root = Precision(held, binary.root(x.cpu()), v.to(device), MEMORY)  # one weight per row
    mistakes: dict[str, Callable[[], object]] = {
        "sum": lambda: x + torch.ones(x.shape),
        "zeros on the CPU": lambda: x[:3, 0] * torch.zeros(3),
        "in place": lambda: x.clone().add_(torch.ones(x.shape)),
        "sum into the CPU": lambda: torch.zeros(x.shape).add_(x),
        "concatenation": lambda: torch.cat([x, torch.zeros(1, 1, dtype=torch.float64)]),
        "values of an assignment": lambda: x.clone().index_put_((torch.arange(3),), torch.zeros(3, 1).double()),
        "indexing the CPU": lambda: torch.zeros(30)[torch.arange(3).to(device)],
        "prior on the CPU": Precision(held, good.root, v, MEMORY).gram,
        "root on the CPU": wrong_root.data_diagonal,
        "indices on the CPU": lambda: good.columns(S),
        "rows on the CPU": lambda: capture(train),
    }
    return {name: _raises(mistake) for name, mistake in mistakes.items()}


def _raises(mistake: Callable[[], object]) -> bool:
    try:
        mistake()
    except MixedDevicesError:
        return True
    return False


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    greedy.GREEDY_PANEL = 4  # so that it takes several
    device = install()
    differences: dict[str, dict[str, float]] = {}
    on_cpu: set[str] = set()
    for case in [case for case in [*CASES, TOKENS] if case.name in (names or CHECKED)]:
        small = replace(case, n_train=ROWS, n_test=ROWS // 2)
        for prior in CHECKED[case.name]:
            made, again = small.make(), small.make()
            v = prior_of(prior, Layout.of(made[0]).size)
            expected = numbers(small, made, v, CPU)
            with SecondDevice() as mode:
                found = numbers(small, again, v, device)
            on_cpu |= set(mode.on_cpu)
            assert found.keys() == expected.keys()
            differences[f"{case.name}, {prior}"] = {key: difference(found[key], expected[key]) for key in expected}
    with SecondDevice():
        noticed = refusals(device)
    result = {"differences": differences, "on_cpu": sorted(on_cpu), "noticed": noticed}
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
