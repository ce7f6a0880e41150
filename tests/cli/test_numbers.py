"""The numbers that the command prints against the dense reference, in float64, to 1e-8."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import reference
import torch
from cli.cli_tools import Project, Tool, mlp, save

Make = Callable[..., Project]
KS = (4, 15)
CLOSE = {"rel": 1e-8, "abs": 1e-8}


def dense(project: Project, prior: torch.Tensor, sigma2: float | None, oracle: torch.Tensor) -> dict:
    """Everything that the reference knows, by method and k."""
    task, model, means = project.task, project.model.double(), slice(project.targets)
    x, y = project.tensors()
    f, J = reference.jacobian(model, x[:22], 22)
    f_test, J_test = reference.jacobian(model, x[22:], 8)
    y_test = y[22:] if task == "regression" else y[22:, 0].long()
    if project.kind == "regression" and sigma2 is None:
        sigma2 = max(float((y[:22] - f).square().mean()), 1e-3)
    noise = reference.own_noise(f_test) if project.meaning else sigma2
    H = reference.output_hessian(project.kind, f, sigma2)
    omega = reference.precision(J, H, prior)
    score = reference.data_term(J, H).diagonal()
    everything = list(range(len(prior)))
    f_test, J_test, oracle = f_test[:, means], J_test[:, means], oracle[:, means]
    full_std = reference.subnet_variance(J_test, omega, everything).sqrt()
    full_ipv = reference.ipv(J, H, prior, everything, sigma2 or 1.0)
    chosen = {("full", len(prior)): everything}
    for k in KS:
        chosen["gradient", k] = reference.gradient_selection(score, prior, k)
        chosen["greedy", k] = reference.greedy_selection(omega, prior, k)
        chosen["subnet-diagonal", k] = reference.subnet_diagonal_selection(omega, k)
        chosen["last-k", k] = everything[-k:]
        theta = torch.cat([tensor.detach().reshape(-1) for tensor in model.parameters()])
        chosen["magnitude", k] = theta.abs().argsort(descending=True, stable=True)[:k].tolist()
    last = len(everything) - project.outputs * 9
    chosen["neural-linear", project.outputs * 9] = everything[last:]
    rows = {}
    for key, S in chosen.items():
        std = reference.subnet_variance(J_test, omega, S).sqrt()
        w2 = (full_std - std).abs().mean(1)
        row = {
            "mean_std": float(std.mean()),
            "w2": float(w2.mean()),
            "w2_se": float(w2.std()) / math.sqrt(8),
            "w2_relative": float(w2.mean() / full_std.mean()),
            "rank": reference.rank_correlation(full_std, std),
            "ipv": reference.ipv(J, H, prior, S, sigma2 or 1.0),
            "coverage95": float(((oracle - f_test).abs() <= 1.96 * std).double().mean()),
        }
        row["discrepancy"] = full_ipv - row["ipv"]
        row["retained"] = row["ipv"] / full_ipv
        if task == "regression":
            row |= reference.regression_metrics(y_test, f_test, std, noise)
            total = (full_std**2 + noise).sqrt() - (std**2 + noise).sqrt()
            row["w2_total"] = float(total.abs().mean())
        else:
            row |= reference.classification_metrics(task, y_test, f_test, reference.subnet_covariance(J_test, omega, S))
        rows[key] = row
    return {"noise_variance": sigma2, "rows": rows, "std": full_std, "S": chosen}


@pytest.mark.parametrize(
    ("kind", "outputs", "prior", "noise"),
    [
        ("regression", 1, 1.0, None),
        ("regression", 2, {"0.*": 0.5, "*": 3.0}, 0.3),
        ("mean-and-log-variance", 4, {"0.*": 0.5, "*": 3.0}, None),
        ("binary", 1, 1.0, None),
        ("multiclass", 3, {"2.weight": 2.0, "*": 0.7}, None),
    ],
)
def test_all_metrics(tool: Tool, make: Make, kind: str, outputs: int, prior: object, noise: float | None) -> None:
    task, meaning = ("regression", kind) if kind.startswith("mean") else (kind, None)
    project = make(task, outputs, meaning=meaning)
    posterior = {"prior_precision": prior, **({"noise_variance": noise} if noise else {})}
    other = mlp([3, 8, outputs], seed=1)
    save(other, project.folder / "oracle.safetensors")
    project.use(posterior=posterior, oracle={"weights": {"path": "oracle.safetensors"}})
    v = torch.empty(project.size, dtype=torch.float64)
    offset = 0
    for name, tensor in project.model.named_parameters():
        value = prior
        if isinstance(prior, dict):
            import fnmatch

            value = next(number for glob, number in prior.items() if fnmatch.fnmatchcase(name, glob))
        v[offset : offset + tensor.numel()] = value
        offset += tensor.numel()
    oracle = other.double()(project.tensors()[0][22:]).detach()
    expected = dense(project, v, noise, oracle)

    methods = "gradient,greedy,subnet-diagonal,last-k,magnitude,neural-linear,full"
    options = ("--method", methods, "--k", ",".join(map(str, KS)), "--dtype", "float64", "--json")
    result = tool("evaluate", *options, cwd=project.folder).json()
    if kind == "regression":
        assert result["noise_variance"] == pytest.approx(expected["noise_variance"], **CLOSE)
    else:
        assert result["noise_variance"] is None
    rows = {(row["method"], row["k"]): row for row in result["rows"]}
    assert rows.keys() == expected["rows"].keys()
    for key, row in expected["rows"].items():
        for metric, value in row.items():
            # The reference takes the integral behind smooth_ece, of a function with kinks, over 4,000 steps.
            near = {"rel": 1e-6} if metric == "smooth_ece" else CLOSE
            expected_value = None if value is None else pytest.approx(value, **near)
            assert rows[key][metric] == expected_value, (key, metric)
        for metric in ("rmse", "crps", "w2_total", "coverage95_total"):
            assert (rows[key][metric] is None) == (task != "regression"), metric
    single = tool("evaluate", "--method", "gradient", "--k", 15, "--json", cwd=project.folder).json()["rows"][0]
    for metric in ("w2", "ipv", "mean_std", "nll"):
        assert single[metric] == pytest.approx(expected["rows"]["gradient", 15][metric], rel=1e-4, abs=1e-5)


def test_noise_from_the_test_rows(tool: Tool, project: Project) -> None:
    project.use(posterior={"prior_precision": 1.0, "noise_variance": {"from": "test"}})
    result = tool("evaluate", "--k", 4, "--dtype", "float64", "--json", cwd=project.folder).json()
    x, y = project.tensors()
    f = project.model.double()(x[22:]).detach()
    sigma2 = float((y[22:] - f).square().mean())
    assert result["noise_variance"] == pytest.approx(sigma2, **CLOSE)
    expected = dense(project, torch.ones(41, dtype=torch.float64), sigma2, f)
    for metric in ("w2", "ipv", "nll", "crps"):
        assert result["rows"][0][metric] == pytest.approx(expected["rows"]["gradient", 4][metric], **CLOSE)


def test_scores_over_other_rows(tool: Tool, make: Make) -> None:
    from safetensors.torch import load_file

    project = make("multiclass", 3)
    x, _ = project.tensors()
    model = project.model.double()
    for split, rows in (("train", x[:22]), ("test", x[22:])):
        f, J = reference.jacobian(model, rows, len(rows))
        H = reference.output_hessian("multiclass", f, 1.0)
        expected = {
            "weighted": reference.data_term(J, H).diagonal(),
            "unweighted": J.square().sum((0, 1)) / len(rows),
        }
        for kind, values in expected.items():
            options = ("--reference", split, "--score", kind, "--dtype", "float64", "--json")
            made = tool("select", "--k", 6, *options, cwd=project.folder).json()["artifacts"]
            np.testing.assert_allclose(load_file(made["scores"])["score"], values, rtol=1e-9, atol=1e-12)
            chosen = load_file(made["indices-gradient-k6"])["indices"].tolist()
            assert chosen == reference.gradient_selection(values, torch.ones(len(values)), 6)
