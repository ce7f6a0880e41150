"""`outputs: mean-and-log-variance`: every command over a network that predicts the noise of each row itself."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from cli.cli_tools import Project, Tool, mlp, refused, save
from safetensors.torch import load_file
from torch import nn

from sublaplace_cli import load_predictor

OWN = "mean-and-log-variance"
CLOSE = {"rel": 1e-9, "abs": 1e-12}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two targets, so four outputs."""
    return Project(tmp_path / "p", outputs=4, meaning=OWN)


def standardised(project: Project) -> Project:
    return project.use(
        data={**project.spec["data"], "standardise": {"input": "from-train", "target": {"mean": [1, 2], "std": [3, 5]}}}
    )


def evaluate(tool: Tool, project: Project, *words: Any) -> dict[str, Any]:
    return tool("evaluate", *words, "--dtype", "float64", "--json", cwd=project.folder).json()


def outputs_of(project: Project, rows: slice = slice(22, None)) -> torch.Tensor:
    return project.model.double()(torch.from_numpy(project.x)[rows]).detach()


def omega_of(project: Project) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(J of the training rows, their H, Ω) for a unit prior."""
    f, J = reference.jacobian(project.model.double(), torch.from_numpy(project.x)[:22], 22)
    H = reference.output_hessian(OWN, f, None)
    return J, H, reference.precision(J, H, torch.ones(project.size, dtype=torch.float64))


def test_the_network_alone_has_the_loss_of_torch(tool: Tool, project: Project) -> None:
    (row,) = evaluate(tool, project, "--method", "map")["rows"]
    f, y = outputs_of(project), torch.from_numpy(project.y)[22:]
    loss = nn.GaussianNLLLoss(full=True, eps=0.0)(f[:, :2], y, f[:, 2:].exp())
    assert row["nll"] == pytest.approx(float(loss), **CLOSE)
    assert row["mean_std"] == 0.0


def test_what_the_result_says(tool: Tool, project: Project) -> None:
    result = evaluate(tool, project, "--k", 9)
    assert (result["task"], result["noise_variance"], result["n_outputs"]) == ("regression", None, 4)
    assert result["provenance"]["outputs"] == OWN
    assert {key for key, value in result["rows"][0].items() if value is None} == {
        *("coverage95", "coverage95_se", "accuracy", "accuracy_se", "ece", "brier", "brier_se"),
        *("smooth_ece", "signed_ece", "signed_ece_se"),
        *("conformal_coverage", "conformal_coverage_se", "conformal_size", "conformal_size_se"),
        *(f"ood_{kind}_{score}" for kind in ("auroc", "fpr95") for score in ("std", "entropy", "mi")),
    }
    fitted = tool("fit", "--k", 9, "--dtype", "float64", "--json", cwd=project.folder).json()
    assert fitted["ipv"] == result["rows"][0]["ipv"]


def lines_of(tool: Tool, project: Project, *words: Any) -> list[dict[str, Any]]:
    """The predictions of a command as they stand in a file."""
    words = ("evaluate", *words, "--dtype", "float64", "--predictions", "p.jsonl", "--overwrite")
    assert tool(*words, cwd=project.folder).code == 0
    return [json.loads(line) for line in (project.folder / "p.jsonl").read_text().splitlines()]


def test_predictions_have_a_line_per_target_with_its_noise(tool: Tool, project: Project) -> None:
    standardised(project)
    lines = lines_of(tool, project, "--k", 9, "--samples", 3)
    columns = ["method", "k", "row", "output", "mean", "std", "noise_std", "total_std", "std_full"]
    columns += ["mean_original", "std_original", "noise_std_original", "total_std_original", "target"]
    assert list(lines[0]) == [*columns, "sample_1", "sample_2", "sample_3"]
    assert [(line["row"], line["output"]) for line in lines[:3]] == [(22, 0), (22, 1), (23, 0)]
    x = project.x
    scaled = (x - x[:22].mean(0)) / x[:22].std(0)
    f = project.model.double()(torch.from_numpy(scaled)[22:]).detach()
    for line in lines:
        row, c = line["row"] - 22, line["output"]
        shift, scale = [(1, 3), (2, 5)][c]
        noise = float(f[row, 2 + c].exp())
        assert line["mean"] == pytest.approx(float(f[row, c]), **CLOSE)
        assert line["noise_std"] == pytest.approx(noise**0.5, **CLOSE)
        assert line["total_std"] == pytest.approx((line["std"] ** 2 + noise) ** 0.5, **CLOSE)
        assert line["mean_original"] == pytest.approx(shift + scale * line["mean"], **CLOSE)
        log_variance = float(f[row, 2 + c]) + 2 * np.log(scale)  # of the target in its own unit
        assert line["noise_std_original"] == pytest.approx(np.exp(log_variance / 2), **CLOSE)
        for name in ("std", "total_std"):
            assert line[f"{name}_original"] == pytest.approx(scale * line[name], **CLOSE)
        assert line["target"] == pytest.approx((project.y[line["row"], c] - shift) / scale, **CLOSE)


def test_predictions_as_tensors(tool: Tool, project: Project) -> None:
    words = ("--k", 9, "--samples", 400, "--dtype", "float64")
    assert tool("evaluate", *words, "--predictions", "p.safetensors", cwd=project.folder).code == 0
    found = load_file(project.folder / "p.safetensors")
    assert found.keys() == {"mean", "std", "noise_std", "total_std", "std_full", "target", "samples"}
    assert found["samples"].shape == (400, 8, 2)
    assert {tensor.shape for name, tensor in found.items() if name != "samples"} == {(8, 2)}
    torch.testing.assert_close(found["noise_std"], reference.own_noise(outputs_of(project)).sqrt())
    deviation = (found["samples"] - found["mean"]).std(0) / found["std"]
    assert float((deviation - 1).abs().max()) < 5 / 800**0.5


@pytest.mark.parametrize("rescale", ["none", "scale", "hybrid"])
def test_a_posterior_alone_predicts_the_same(tool: Tool, project: Project, rescale: str) -> None:
    standardised(project)
    result = evaluate(tool, project, "--k", 9, "--rescale", rescale)
    (posterior,) = (path for name, path in result["artifacts"].items() if name.startswith("posterior-g"))
    again = evaluate(tool, project, "--posterior", posterior)
    for metric in ("mean_std", "nll", "crps", "rmse", "coverage95_total", "ipv", "rescale", "remainder"):
        assert again["rows"][0][metric] == pytest.approx(result["rows"][0][metric], **CLOSE), metric
    lines = lines_of(tool, project, "--posterior", posterior)
    predict, x = load_predictor(posterior, project.model.double()), torch.from_numpy(project.x[22:])
    for found, std in ((predict(x), "std"), (predict.observations(x), "total_std")):
        for tensor, name in zip(found, ("mean", std), strict=True):
            assert tensor.shape == (8, 2)
            assert tensor.flatten().tolist() == pytest.approx([line[f"{name}_original"] for line in lines], **CLOSE)
    mean, std = predict.observations(x[0])
    assert (mean.shape, std.shape) == ((2,), (2,))


def test_a_posterior_of_other_outputs_is_refused(tool: Tool, project: Project) -> None:
    result = evaluate(tool, project, "--k", 9)
    (posterior,) = (path for name, path in result["artifacts"].items() if name.startswith("posterior-g"))
    names = [f"y{c}" for c in range(4)]
    project.write_csv("data.csv", ["a", "b", "c", *names], np.hstack([project.x, project.y, project.y]))
    data = {**project.spec["data"], "columns": {"target": names, "input": ["a", "b", "c"]}}
    project.use(outputs=None, data=data)
    run = tool("evaluate", "--posterior", posterior, "--dtype", "float64", cwd=project.folder)
    refused(run, f"its outputs are {OWN}", "those of the spec are the usual ones")


def left_out_stds(project: Project, S: list[int]) -> torch.Tensor:
    """Standard deviations of the training rows' means, each by the posterior of the other rows (22, 2)."""
    J, H, _ = omega_of(project)
    found = []
    for n in range(22):
        others = [i for i in range(22) if i != n]
        omega = reference.precision(J[others], H[others], torch.ones(project.size, dtype=torch.float64))
        found.append(reference.subnet_variance(J[n : n + 1, :2], omega, S)[0].sqrt())
    return torch.stack(found)


def test_rescaling_is_fitted_for_the_means(tool: Tool, project: Project) -> None:
    """√c is the weighted median of σ_full/σ over the left-out rows. Log-variances have another unit: none counts."""
    rows = evaluate(tool, project, "--method", "gradient,norm,constant", "--k", 9, "--rescale", "scale")["rows"]
    J, H, _ = omega_of(project)
    S = reference.gradient_selection(reference.data_term(J, H).diagonal(), torch.ones(project.size), 9)
    full = left_out_stds(project, list(range(project.size))).flatten()
    norms = J[:, :2].square().sum(2).sqrt().flatten()
    kinds = {"rescale": left_out_stds(project, S).flatten(), "remainder": norms}
    for (name, own), row in zip(kinds.items(), rows, strict=False):
        ratio, order = (full / own).sort()
        weight = own[order].cumsum(0)
        root = float(ratio[int((weight < weight[-1] / 2).sum())])
        assert row[name] == pytest.approx(root**2, rel=1e-8)
    assert rows[2]["mean_std"] == pytest.approx(float(full.sort().values[21]), rel=1e-8)


@pytest.mark.parametrize("prior", ["marglik", {"tune": "nll", "split": "validation"}], ids=["marglik", "nll"])
def test_the_prior_precision_can_be_left_to_the_data(tool: Tool, project: Project, prior: Any) -> None:
    splits = {"train": {"rows": "0:22"}, "test": {"rows": "22:26"}, "validation": {"rows": "26:"}}
    project.use(posterior={"prior_precision": prior}, data={**project.spec["data"], "splits": splits})
    tuned = evaluate(tool, project, "--k", 9)["tuned"]
    assert tuned["noise_variance"] is None
    if prior != "marglik":
        assert tuned["nll"] <= tuned["start"]["nll"]
        return
    J, H, _ = omega_of(project)
    theta = torch.cat([tensor.detach().flatten() for tensor in project.model.parameters()])
    f, y = outputs_of(project, slice(22)), torch.from_numpy(project.y)[:22]
    fit = -nn.GaussianNLLLoss(full=True, eps=0.0, reduction="sum")(f[:, :2], y, f[:, 2:].exp())

    def evidence(alpha: float) -> float:
        determinant = torch.linalg.slogdet(reference.data_term(J, H) / alpha + torch.eye(project.size)).logabsdet
        return float(fit - 0.5 * alpha * theta.square().sum() - 0.5 * determinant)

    best = tuned["prior_precision"]
    assert tuned["log_evidence"] == pytest.approx(evidence(best), rel=1e-8)
    assert evidence(best) >= max(evidence(0.9 * best), evidence(1.1 * best))


def test_every_reference(tool: Tool, project: Project) -> None:
    pytest.importorskip("curvlinops")
    for seed in (1, 2):
        save(mlp([3, 8, 4], seed=seed), project.folder / f"{seed}.safetensors")
    project.use(ensemble={"checkpoints": ["1.safetensors", "2.safetensors"]})
    rows = evaluate(tool, project, "--method", "full,diagonal,kfac,ensemble")["rows"]
    *_, omega = omega_of(project)
    _, J_test = reference.jacobian(project.model.double(), torch.from_numpy(project.x)[22:], 8)
    diagonal = (J_test[:, :2].square() / omega.diagonal()).sum(2).sqrt()
    assert rows[1]["mean_std"] == pytest.approx(float(diagonal.mean()), **CLOSE)
    assert rows[2]["w2_relative"] < 0.5
    assert rows[2]["ipv"] > 0
    x, y = torch.from_numpy(project.x)[22:], torch.from_numpy(project.y)[22:]
    members = torch.stack([mlp([3, 8, 4], seed=seed).double()(x).detach() for seed in (1, 2)])
    noise, std = reference.own_noise(members.mean(0)), members[:, :, :2].std(0)
    for name, value in reference.regression_metrics(y, members.mean(0)[:, :2], std, noise).items():
        assert rows[3][name] == pytest.approx(value, **CLOSE), name


def test_kfac_of_one_layer_and_one_kind_of_row_is_exact(tool: Tool, project: Project) -> None:
    """As in test_kfac: there its curvature is a Kronecker product, without its bias' share."""
    pytest.importorskip("curvlinops")
    project.x[:22] = project.x[0]
    model = nn.Sequential(nn.Linear(3, 4))
    save(model, project.folder / "model.safetensors")
    project.write_csv("data.csv", ["a", "b", "c", "y0", "y1"], np.hstack([project.x, project.y]))
    build = {"arch": "mlp", "args": {"in": 3, "hidden": [], "out": 4}}
    weights = {"path": "model.safetensors"}
    prior = {"prior_precision": {"*weight": 1.0, "*": 1e12}}
    project.use(model={"build": build, "weights": weights}, posterior=prior)
    row, full = evaluate(tool, project, "--method", "kfac,full")["rows"]
    assert row["w2"] < 1e-6 * full["mean_std"]
    assert row["ipv"] == pytest.approx(full["ipv"], rel=1e-3)


def test_bounds_pictures_gates_and_sweeps(tool: Tool, project: Project) -> None:
    pytest.importorskip("matplotlib")
    bounded = evaluate(tool, project, "--k", 9, "--full", "bracket", "--full-rows", 22)["rows"][0]
    full = evaluate(tool, project, "--k", 9)["rows"][0]
    assert bounded["w2_low"] <= full["w2"] <= bounded["w2_high"]
    save(mlp([3, 8, 4], seed=1), project.folder / "other.safetensors")
    words = ("--k", 9, "--checkpoint", "model.safetensors", "--checkpoint", "other.safetensors")
    words += ("--fail-if", "nll > 1e9", "--report", "r.html", "--predictions", "p.csv")
    swept = evaluate(tool, project, *words)
    assert swept["gate"]["passed"]
    with open(project.folder / "p.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 2 * 8 * 2
    assert (project.folder / "r.html").stat().st_size > 10_000


@pytest.mark.parametrize("columns", [2, 4])
def test_an_oracle_has_the_means_alone_or_all_outputs(tool: Tool, project: Project, columns: int) -> None:
    np.save(project.folder / "oracle.npy", outputs_of(project).numpy()[:, :columns])
    project.use(oracle={"predictions": "oracle.npy"})
    assert evaluate(tool, project, "--k", 9)["rows"][0]["coverage95"] == 1.0


def test_what_does_not_fit_is_refused(tool: Tool, tmp_path: Path) -> None:
    odd = Project(tmp_path / "odd", outputs=3, meaning=OWN)
    refused(tool("evaluate", "--k", 9, cwd=odd.folder), "an even number of outputs, the model has 3")
    wide = Project(tmp_path / "wide", outputs=4).use(outputs=OWN)
    refused(tool("evaluate", "--k", 9, cwd=wide.folder), "4 target columns, the model has 4 outputs: 2 means")
    wild = Project(tmp_path / "wild", outputs=2, meaning=OWN)
    wild.model[2].bias.data[1] = -400.0
    save(wild.model, wild.folder / "model.safetensors")
    for method in ("gradient", "map"):
        refused(tool("evaluate", "--method", method, cwd=wild.folder), "predicts a log-variance of ±4")
