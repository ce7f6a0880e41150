"""`--conformal`: metrics, columns, gates and refusals, through the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from cli.cli_tools import Project, Tool, refused, save
from safetensors.torch import load_file
from scipy import stats

KINDS = {
    "regression": ("regression", 2, None),
    "own noise": ("regression", 4, "mean-and-log-variance"),
    "binary": ("binary", 1, None),
    "multiclass": ("multiclass", 4, None),
}
TRAIN, TEST, ROWS = 22, 80, 170  # training rows, the first row after the test rows, all rows
LEVEL, NOISE, K = 0.8, 0.3, 12


@pytest.fixture(params=KINDS)
def project(request: pytest.FixtureRequest, make: Any) -> Project:
    """Labels, where there are any, are drawn from the network, which is then wrong at some of the rows."""
    return held_out(make, request.param)


def held_out(make: Any, kind: str) -> Project:
    task, outputs, meaning = KINDS[kind]
    project = make(task, outputs, rows=ROWS, meaning=meaning)
    if task != "regression":
        labels_of_the_network(project)
    elif meaning is None:
        project.use(posterior={"prior_precision": 1.0, "noise_variance": NOISE})
    splits = {"train": f"0:{TRAIN}", "test": f"{TRAIN}:{TEST}", "validation": f"{TEST}:"}
    data = {**project.spec["data"], "splits": {name: {"rows": rows} for name, rows in splits.items()}}
    return project.use(data=data)


def labels_of_the_network(project: Project) -> None:
    """Labels drawn from its own probabilities, after its logits were made larger."""
    with torch.no_grad():
        for parameter in project.model[-1].parameters():
            parameter.mul_(6)
    save(project.model, project.folder / "model.safetensors")
    logits = project.model(project.tensors()[0].float()).detach().double()
    logits = torch.cat([torch.zeros_like(logits), logits], 1) if project.task == "binary" else logits
    project.y = torch.multinomial(logits.softmax(1), 1, generator=torch.Generator().manual_seed(1)).numpy()
    project.write_csv("data.csv", ["a", "b", "c", "y0"], np.hstack([project.x, project.y]))


def evaluate(tool: Tool, project: Project, *words: Any) -> dict[str, Any]:
    options = ("--conformal", LEVEL, "--dtype", "float64", "--json", *words)
    return tool("evaluate", *options, cwd=project.folder).json()


def dense(project: Project, k: int = K) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, covariances by `gradient` (k = 0: none) and targets of all rows after the training rows."""
    x, y = project.tensors()
    model = project.model.double()
    f, J = reference.jacobian(model, x[:TRAIN], TRAIN)
    f_rest, J_rest = reference.jacobian(model, x[TRAIN:], ROWS - TRAIN)
    H, v = reference.output_hessian(project.kind, f, NOISE), torch.ones(J.shape[2], dtype=torch.float64)
    S = reference.gradient_selection(reference.data_term(J, H).diagonal(), v, k)
    covariance = reference.subnet_covariance(J_rest, reference.precision(J, H, v), S)
    return f_rest, covariance, y[TRAIN:] if project.task == "regression" else y[TRAIN:, 0].long()


def totals(project: Project, f: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    noise = reference.own_noise(f) if project.meaning else NOISE
    return (covariance.diagonal(dim1=1, dim2=2)[:, : project.targets] + noise).sqrt()


def expected(project: Project, f, covariance, y, by_class: bool = False, level: float = LEVEL):
    """(quantiles, coverage of each test row, size of each, (lower, upper) or the sets), by the reference."""
    here, there = slice(None, TEST - TRAIN), slice(TEST - TRAIN, None)
    if project.task == "regression":
        mean, total = f[:, : project.targets], totals(project, f, covariance)
        quantiles, lower, upper = reference.conformal_intervals(
            mean[there], total[there], y[there], mean[here], total[here], level
        )
        inside = ((lower <= y[here]) & (y[here] <= upper)).double().mean(1)
        return quantiles, inside.numpy(), (upper - lower).mean(1).numpy(), (lower, upper)
    p = reference.class_probabilities(project.task, f, covariance)
    quantiles, sets = reference.conformal_sets(p[there], y[there], p[here], level, by_class)
    inside = np.array([float(int(label) in own) for label, own in zip(y[here], sets, strict=True)])
    return quantiles, inside, np.array([len(own) for own in sets], dtype=float), sets


def test_the_metrics_are_those_of_the_reference(tool: Tool, project: Project) -> None:
    result = evaluate(tool, project, "--k", K)
    quantiles, inside, size, _ = expected(project, *dense(project))
    row = result["rows"][0]
    assert row["conformal_coverage"] == pytest.approx(inside.mean(), abs=1e-9)
    assert row["conformal_size"] == pytest.approx(size.mean(), rel=1e-6)
    assert row["conformal_coverage_se"] == pytest.approx(stats.sem(inside), rel=1e-6)
    assert row["conformal_size_se"] == pytest.approx(stats.sem(size), rel=1e-6)
    found = result["conformal"]
    assert (found["level"], found["by"], found["split"], found["rows"]) == (LEVEL, None, "validation", ROWS - TEST)
    own = next(each for each in found["quantiles"] if each["method"] == "gradient")
    wanted = quantiles if project.task == "regression" else quantiles[:1]
    # Probabilities of several classes are integrals over fixed points, off by 1e-3.
    assert own["quantiles"] == pytest.approx([float(value) for value in wanted], abs=3e-3)
    assert result["provenance"]["conformal"] == {"level": LEVEL, "by": None}


def test_every_row_of_the_table_has_them(tool: Tool, project: Project) -> None:
    result = evaluate(tool, project, "--method", "gradient,norm,diagonal", "--k", f"5,{K}")
    rows = [*result["rows"], *result["references"], result["full"]]
    assert all(row["conformal_size"] > 0 and row["conformal_coverage"] > 0.5 for row in rows)
    named = {(each["method"], each["k"]) for each in result["conformal"]["quantiles"]}
    assert named == {(row["method"], row["k"]) for row in rows}
    table = tool("evaluate", "--k", K, "--conformal", LEVEL, "--format", "markdown", cwd=project.folder).out
    assert "conformal_coverage | conformal_size |" in table
    without = tool("evaluate", "--k", K, "--json", cwd=project.folder).json()
    assert without["rows"][0]["conformal_size"] is None
    assert without["rows"][0]["why"]["conformal_size"] == "no conformal level was set"
    assert "conformal" not in without
    plain = tool("evaluate", "--k", K, "--format", "markdown", cwd=project.folder).out
    assert "conformal" not in plain


def test_the_network_alone_has_one_width(tool: Tool, make: Any) -> None:
    """No gradients are needed for it: an interval is ± the quantile of |y − f|."""
    project = held_out(make, "regression")
    result = evaluate(tool, project, "--method", "map", "--full", "none")
    f, _, y = dense(project)
    error = (y - f)[TEST - TRAIN :].abs()
    rank = -(-(ROWS - TEST + 1) * 4 // 5)
    widths = [2 * sorted(error[:, t].tolist())[rank - 1] for t in range(2)]
    assert result["rows"][0]["conformal_size"] == pytest.approx(sum(widths) / 2, rel=1e-9)
    assert result["rows"][0]["conformal_size_se"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_a_quantile_for_each_class(tool: Tool, make: Any, kind: str) -> None:
    project = held_out(make, kind)
    result = evaluate(tool, project, "--k", K, "--conformal-by", "class", "--conformal", 0.6)
    quantiles, inside, size, _ = expected(project, *dense(project), by_class=True, level=0.6)
    own = result["conformal"]["quantiles"][0]["quantiles"]
    assert own == pytest.approx([float(value) for value in quantiles], abs=3e-3)
    assert len(own) == (2 if kind == "binary" else 4)
    assert result["conformal"]["by"] == "class"
    assert result["rows"][0]["conformal_coverage"] == pytest.approx(inside.mean(), abs=0.04)
    assert result["rows"][0]["conformal_size"] == pytest.approx(size.mean(), abs=0.1)


def lines_of(tool: Tool, project: Project, *words: Any) -> list[dict[str, str]]:
    path = project.folder / "predictions.csv"
    evaluate(tool, project, "--k", K, "--predictions", path, "--overwrite", *words)
    with path.open() as file:
        return list(csv.DictReader(file))


def test_predictions(tool: Tool, project: Project) -> None:
    lines = lines_of(tool, project)
    *_, size, regions = expected(project, *dense(project))
    columns = project.targets if project.task == "regression" else project.outputs
    assert len(lines) == (TEST - TRAIN) * columns
    if project.task == "regression":
        z = stats.norm.ppf((1 + LEVEL) / 2)
        for line, lower, upper in zip(lines, *(each.flatten().tolist() for each in regions), strict=True):
            assert (float(line["lower"]), float(line["upper"])) == pytest.approx((lower, upper), rel=1e-6)
            assert float(line["std_conformal"]) * z == pytest.approx((upper - lower) / 2, rel=1e-6)
            assert "in_set" not in line
        return
    same = 0
    for line in lines:
        own = regions[int(line["row"]) - TRAIN]
        label = 1 if project.task == "binary" else int(line["output"])
        same += line["in_set"] == str(int(label in own)) and line["set_size"] == str(len(own))
        assert "lower" not in line
    assert same >= 0.95 * len(lines), "a probability within 1e-3 of the quantile may fall on either side"
    per_row = {line["row"]: int(line["set_size"]) for line in lines}
    assert np.mean(list(per_row.values())) == pytest.approx(size.mean(), abs=0.05)


def test_bounds_in_original_units(tool: Tool, make: Any) -> None:
    project = held_out(make, "regression")
    scale = {"mean": [1, 2], "std": [3, 5]}
    project.use(data={**project.spec["data"], "standardise": {"input": "none", "target": scale}})
    for line in lines_of(tool, project)[:6]:
        mean, std = (scale[what][int(line["output"])] for what in ("mean", "std"))
        for name in ("lower", "upper"):
            assert float(line[f"{name}_original"]) == pytest.approx(mean + std * float(line[name]), rel=1e-12)
        assert float(line["std_conformal_original"]) == pytest.approx(std * float(line["std_conformal"]), rel=1e-12)


def test_predictions_as_tensors(tool: Tool, project: Project) -> None:
    path = project.folder / "predictions.safetensors"
    row = evaluate(tool, project, "--k", K, "--predictions", path)["rows"][0]
    tensors = load_file(path)
    if project.task == "regression":
        inside = (tensors["lower"] <= tensors["target"]) & (tensors["target"] <= tensors["upper"])
        assert float(inside.double().mean()) == pytest.approx(row["conformal_coverage"], abs=1e-12)
        assert float((tensors["upper"] - tensors["lower"]).mean()) == pytest.approx(row["conformal_size"])
        assert tensors["std_conformal"].shape == tensors["std"].shape
        return
    inside = tensors["in_set"].gather(1, tensors["target"].unsqueeze(1))
    assert float(inside.double().mean()) == pytest.approx(row["conformal_coverage"], abs=1e-12)
    assert float(tensors["in_set"].sum(1).double().mean()) == pytest.approx(row["conformal_size"])


def test_with_a_calibration(tool: Tool, project: Project) -> None:
    """The quantile is that of the calibrated variances: c is applied at the validation rows too."""
    result = evaluate(tool, project, "--k", K, "--rescale", "calibrated")
    row = result["rows"][0]
    f, covariance, y = dense(project)
    _, inside, size, _ = expected(project, f, row["rescale"] * covariance, y)
    assert result["calibration"]["split"] == "validation"
    assert row["conformal_size"] == pytest.approx(size.mean(), rel=1e-6 if project.task == "regression" else 0.02)
    assert row["conformal_coverage"] == pytest.approx(inside.mean(), abs=0.02)


def test_the_full_posterior_beside_its_calibrated_self(tool: Tool, make: Any) -> None:
    """The reference stays as it is, so it has quantiles of its own."""
    project = held_out(make, "regression")
    plain = evaluate(tool, project, "--method", "full")
    both = evaluate(tool, project, "--method", "full", "--rescale", "calibrated")
    assert both["full"]["conformal_size"] == pytest.approx(plain["full"]["conformal_size"], rel=1e-12)
    assert both["rows"][0]["conformal_size"] != pytest.approx(plain["rows"][0]["conformal_size"], rel=1e-3)


def test_a_temperature_is_used_at_the_validation_rows_too(tool: Tool, make: Any) -> None:
    project = held_out(make, "multiclass")
    result = evaluate(tool, project, "--method", "temperature,map", "--full", "none")
    rows = {row["method"]: row for row in (*result["rows"], *result["references"])}
    factor = next(each["factor"] for each in result["calibration"]["factors"] if each["method"] == "temperature")
    f, covariance, y = dense(project)
    _, inside, size, _ = expected(project, f / factor**0.5, 0 * covariance, y)
    assert rows["temperature"]["conformal_size"] == pytest.approx(size.mean(), abs=1e-9)
    assert rows["temperature"]["conformal_coverage"] == pytest.approx(inside.mean(), abs=1e-9)


def test_a_stored_posterior(tool: Tool, project: Project) -> None:
    """It reads validation and test rows, no training rows; with the same numbers."""
    result = evaluate(tool, project, "--k", K)
    (path,) = project.folder.glob(f".sublaplace/*/posterior-gradient-k{K}.safetensors")
    served = evaluate(tool, project, "--posterior", path)
    for key in ("conformal_coverage", "conformal_size"):
        assert served["rows"][0][key] == pytest.approx(result["rows"][0][key], rel=1e-9)
    assert served["conformal"]["quantiles"][0]["quantiles"] == pytest.approx(
        result["conformal"]["quantiles"][0]["quantiles"], rel=1e-9
    )
    assert served["provenance"]["conformal"] == {"level": LEVEL, "by": None}


def test_gates(tool: Tool, make: Any) -> None:
    project = held_out(make, "regression")
    row = evaluate(tool, project, "--k", K, "-o", "baseline.json")["rows"][0]
    asked = ("evaluate", "--k", K, "--dtype", "float64", "--conformal", LEVEL)
    limits = (
        "--fail-if",
        f"conformal_coverage < {row['conformal_coverage'] - 0.01}",
        "--fail-if",
        "conformal_size > 99",
    )
    assert tool(*asked, *limits, cwd=project.folder).code == 0
    assert tool(*asked, "--fail-if", "conformal_size > 0.001", cwd=project.folder).code == 1
    assert tool("evaluate", "--k", K, "--fail-if", "conformal_size > 99", cwd=project.folder).code == 4
    compared = ("--baseline", "baseline.json", "--max-regression", "conformal_coverage=0.001")
    assert tool(*asked, *compared, cwd=project.folder).code == 0
    other = tool(*asked, *compared, "--conformal", 0.7, cwd=project.folder)
    assert other.code == 4
    assert "--conformal" in other.err


def test_a_sweep(tool: Tool, make: Any) -> None:
    project = held_out(make, "regression")
    words = ("--method", "random", "--k", K, "--seed", 0, "--seed", 1, "--predictions", "all.jsonl")
    result = evaluate(tool, project, *words)
    sizes = [row["conformal_size"] for row in result["rows"]]
    assert result["mean"][0]["conformal_size"] == pytest.approx(np.mean(sizes))
    assert [member["conformal"]["level"] for member in result["checkpoints"]] == [LEVEL, LEVEL]
    assert result["provenance"]["conformal"]["level"] == LEVEL
    lines = (project.folder / "all.jsonl").read_text().splitlines()
    assert all(json.loads(line)["lower"] < json.loads(line)["upper"] for line in lines)


def test_test_rows_without_targets_still_have_regions(tool: Tool, make: Any) -> None:
    project = held_out(make, "regression")
    data = project.spec["data"]
    project.npz()
    np.savez(project.folder / "new.npz", x=project.x[TRAIN:TEST].astype(np.float32))
    splits = {**data["splits"], "test": {"path": "new.npz", "arrays": {"input": "x"}}}
    project.use(data={**project.spec["data"], "splits": splits})
    row = evaluate(tool, project, "--k", K)["rows"][0]
    assert row["conformal_coverage"] is None
    assert row["why"]["conformal_coverage"] == "the test rows have no targets"
    assert row["conformal_size"] > 0


def splits(project: Project, **changed: Any) -> Path:
    own = {**project.spec["data"]["splits"], **changed}
    data = {**project.spec["data"], "splits": {name: part for name, part in own.items() if part is not None}}
    return project.save(project.changed(data=data), "other.yaml")


@pytest.mark.parametrize(
    ("validation", "words", "message"),
    [
        (None, (), "the spec has no split 'validation'"),
        ({"same_as": "test"}, (), "the validation rows are the test rows"),
        ({"same_as": "train"}, (), "the validation rows are the train rows"),
        ({"rows": "80:98"}, ("--conformal", 0.95), "needs at least 19 validation rows, there are 18"),
        ({"rows": "80:"}, ("--conformal", 0.999), "needs at least 999 validation rows, there are 90"),
        ({"rows": "80:"}, ("--conformal-by", "class"), "--conformal-by class is for classes"),
        ({"rows": "80:"}, ("--conformal", 1), "--conformal 1 is out of range"),
        ({"rows": "80:"}, ("--conformal", 0), "--conformal 0 is out of range"),
        ({"rows": "80:"}, ("--conformal", "nan"), "out of range"),
        ({"rows": "80:"}, ("--conformal-by", "row"), "--conformal-by 'row' is not known"),
    ],
)
def test_what_is_refused(tool: Tool, make: Any, validation: Any, words: Any, message: str) -> None:
    project = held_out(make, "regression")
    spec = splits(project, validation=validation)
    refused(tool("evaluate", "--conformal", LEVEL, *words, "--spec", spec, cwd=project.folder), message)
    assert not (project.folder / ".sublaplace").exists(), "refused before any work"


def test_what_is_refused_for_classes(tool: Tool, make: Any) -> None:
    project = held_out(make, "multiclass")
    few = splits(project, validation={"rows": f"{TEST}:{TEST + 12}"})
    words = ("evaluate", "--conformal", 0.9, "--conformal-by", "class")
    message = "--conformal 0.9 needs at least 9 validation rows of each class, there are"
    refused(tool(*words, "--spec", few, cwd=project.folder), message, "of class 0")
    refused(tool("evaluate", "--conformal-by", "class", cwd=project.folder), "--conformal-by needs --conformal")


def test_validation_rows_without_targets(tool: Tool, make: Any) -> None:
    project = held_out(make, "regression")
    data = project.spec["data"]
    project.npz()
    np.savez(project.folder / "new.npz", x=project.x[TEST:].astype(np.float32))
    splits = {**data["splits"], "validation": {"path": "new.npz", "arrays": {"input": "x"}}}
    project.use(data={**project.spec["data"], "splits": splits})
    refused(tool("evaluate", "--conformal", LEVEL, cwd=project.folder), "the validation rows have no targets")


def test_a_stored_posterior_needs_the_validation_split_too(tool: Tool, make: Any) -> None:
    project = held_out(make, "regression")
    evaluate(tool, project, "--k", K)
    (path,) = project.folder.glob(f".sublaplace/*/posterior-gradient-k{K}.safetensors")
    spec = splits(project, validation=None)
    words = ("evaluate", "--posterior", path, "--conformal", LEVEL, "--spec", spec)
    refused(tool(*words, cwd=project.folder), "the spec has no split 'validation'")
