"""`--rescale calibrated`, the rivals in every table, and the verdict, through the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from cli.cli_tools import Project, Tool, refused, save
from safetensors import safe_open

from sublaplace_cli import load_predictor

ROWS, TEST, K, FOLDS = 90, 68, 12, 5
TASKS = {"regression": 1, "binary": 1, "multiclass": 3}
NOISE = 0.3
BESIDE = "norm"  # shown in every table
GRID = np.logspace(-8, 8, 1601)


@pytest.fixture(params=TASKS)
def task(request) -> str:
    return request.param


@pytest.fixture
def larger(make, task) -> Project:
    project = make(task, TASKS[task], rows=ROWS)
    if task == "regression":
        return project.use(posterior={"noise_variance": NOISE})
    return overconfident(project)


def overconfident(project: Project) -> Project:
    """A network with large logits, and labels that are drawn from them with more noise than it says."""
    with torch.no_grad():
        for parameter in project.model[-1].parameters():
            parameter.mul_(8)
    save(project.model, project.folder / "model.safetensors")
    logits = project.model(project.tensors()[0].float()).detach().double()
    logits = torch.cat([torch.zeros_like(logits), logits], 1) if project.task == "binary" else logits
    generator = torch.Generator().manual_seed(1)
    noisy = logits + 2 * torch.randn(logits.shape, dtype=torch.float64, generator=generator)
    project.y = torch.multinomial(noisy.softmax(1), 1, generator=generator).numpy()
    project.write_csv("data.csv", ["a", "b", "c", "y0"], np.hstack([project.x, project.y]))
    return project


def dense(project: Project) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, covariances and targets of all rows after the training rows, by `gradient`."""
    x, y = project.tensors()
    model = project.model.double()
    f, J = reference.jacobian(model, x[:22], 22)
    f_rest, J_rest = reference.jacobian(model, x[22:], len(x) - 22)
    H = reference.output_hessian(project.task, f, NOISE)
    v = torch.ones(J.shape[2], dtype=torch.float64)
    S = reference.gradient_selection(reference.data_term(J, H).diagonal(), v, K)
    covariance = reference.subnet_covariance(J_rest, reference.precision(J, H, v), S)
    return f_rest, covariance, y[22:] if project.task == "regression" else y[22:, 0].long()


def losses(project: Project, f, covariance, y, c: float) -> np.ndarray:
    if project.task == "regression":
        total = (c * covariance[:, 0] + NOISE).sqrt()
        return -torch.distributions.Normal(f, total).log_prob(y)[:, 0].numpy()
    p = reference.class_probabilities(project.task, f, c * covariance)
    return -p[range(len(y)), y].log().numpy()


def best(curves: dict[float, np.ndarray], rows: np.ndarray) -> float:
    return min(curves, key=lambda c: curves[c][rows].sum())


def options(project: Project, *more) -> tuple:
    return ("--method", "gradient", "--k", K, "--rescale", "calibrated", "--dtype", "float64", *more)


def test_every_row_is_predicted_by_a_factor_that_has_not_seen_it(tool: Tool, larger: Project) -> None:
    f, covariance, y = dense(larger)
    grid = GRID if larger.task == "regression" else GRID[600:1001:10]
    curves = {c: losses(larger, f, covariance, y, c) for c in grid}
    fold = torch.randperm(TEST, generator=torch.Generator().manual_seed(0)).numpy() % FOLDS
    expected = np.empty(TEST)
    for number in range(FOLDS):
        here = fold == number
        expected[here] = curves[best(curves, ~here)][here]
    result = tool("evaluate", *options(larger, "--json"), cwd=larger.folder).json()
    # The factors of the grid are off by less than a step, to which the likelihood is flat.
    assert result["rows"][0]["nll"] == pytest.approx(expected.mean(), abs=2e-3)
    fitted = result["calibration"]
    assert (fitted["split"], fitted["rows"], fitted["folds"]) == ("test", TEST, FOLDS)
    own = next(each for each in fitted["factors"] if each["method"] == "gradient")
    assert own["factor"] == pytest.approx(result["rows"][0]["rescale"])
    assert own["factor"] == pytest.approx(best(curves, fold >= 0), rel=0.35 if larger.task != "regression" else 0.03)
    assert len(own["by_fold"]) == FOLDS


def test_a_validation_split_is_used_instead_of_folds(tool: Tool, larger: Project) -> None:
    spec = larger.spec["data"]
    spec["splits"] |= {"test": {"rows": "22:60"}, "validation": {"rows": "60:"}}
    larger.use(data=spec)
    f, covariance, y = dense(larger)
    result = tool("evaluate", *options(larger, "--json"), cwd=larger.folder).json()
    c = result["rows"][0]["rescale"]
    assert (result["calibration"]["split"], result["calibration"]["folds"]) == ("validation", None)
    there = slice(60 - 22, None)
    found, near = (losses(larger, f[there], covariance[there], y[there], x).sum() for x in (c, 1.3 * c))
    lower = losses(larger, f[there], covariance[there], y[there], c / 1.3).sum()
    assert found <= min(near, lower) + 1e-9
    here = slice(None, 60 - 22)
    assert result["rows"][0]["nll"] == pytest.approx(
        losses(larger, f[here], covariance[here], y[here], c).mean(), rel=1e-6
    )


def test_a_posterior_keeps_the_factor(tool: Tool, larger: Project) -> None:
    """`fit`, `--posterior` and `load_predictor` are calibrated; the factor is that of all folds together."""
    evaluated = tool("evaluate", *options(larger, "--json"), cwd=larger.folder).json()
    fitted = tool("fit", *options(larger, "--json"), cwd=larger.folder).json()
    c = evaluated["rows"][0]["rescale"]
    assert fitted["rescale"] == pytest.approx(c, rel=1e-9)
    path = Path(fitted["artifacts"][f"posterior-gradient-k{K}-calibrated"])
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["sublaplace"])["rescaling"] == "calibrated"
    served = tool("evaluate", "--posterior", path, "--dtype", "float64", "--json", cwd=larger.folder).json()
    assert served["rows"][0]["mean_std"] == pytest.approx(evaluated["rows"][0]["mean_std"], rel=1e-9)
    assert served["provenance"]["rescale"] == "calibrated"
    f, covariance, _ = dense(larger)
    predict = load_predictor(path, larger.model.double())
    _, std = predict(larger.tensors()[0][22:])
    torch.testing.assert_close(std, (c * covariance.diagonal(dim1=1, dim2=2)).sqrt(), rtol=1e-7, atol=1e-9)
    if larger.task == "regression":
        with pytest.raises(Exception, match="classes"):
            predict.probabilities(larger.tensors()[0][22:])
    else:
        expected = reference.class_probabilities(larger.task, f[:4], c * covariance[:4])
        found = predict.probabilities(larger.tensors()[0][22:26])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_it_needs_no_full_posterior(tool: Tool, larger: Project) -> None:
    methods = ("--method", "gradient,norm,constant,diagonal", "--k", K, "--full", "none", "--rescale", "calibrated")
    result = tool("evaluate", *methods, "--json", cwd=larger.folder).json()
    assert result["full"] is None
    assert all(row["nll"] is not None for row in result["rows"])
    assert not list(larger.folder.glob(".sublaplace/*/posterior-full*"))
    factors = {each["method"] for each in result["calibration"]["factors"]}
    assert {"gradient", "norm", "constant", "diagonal"} <= factors


def test_the_size_of_the_prior_no_longer_matters_to_norm(tool: Tool, larger: Project) -> None:
    """Its variance is one number times ‖g‖² / α: a calibration undoes α."""
    found = []
    for alpha in (0.1, 1000.0):
        larger.use(posterior={**larger.spec.get("posterior", {}), "prior_precision": alpha})
        options = ("--method", "norm", "--full", "none", "--rescale", "calibrated", "--json")
        found.append(tool("evaluate", *options, cwd=larger.folder).json()["rows"][0])
    assert found[0]["nll"] == pytest.approx(found[1]["nll"], abs=1e-4)


def test_the_rivals_of_a_table(tool: Tool, larger: Project) -> None:
    result = tool("evaluate", "--k", K, "--json", cwd=larger.folder).json()
    names = [row["method"] for row in result["references"]]
    of_classes = [] if larger.task == "regression" else ["temperature", "constant, calibrated"]
    assert names == ["map", *of_classes, "norm"]
    asked = tool("evaluate", "--method", "map", "--json", "--full", "none", cwd=larger.folder).json()
    assert "map" not in [row["method"] for row in asked["references"]]
    assert asked["rows"][0]["nll"] == pytest.approx(result["references"][0]["nll"], rel=1e-6)
    if larger.task == "regression":
        refused(tool("evaluate", "--method", "temperature", cwd=larger.folder), "for classes")
        return
    own = tool("evaluate", "--method", "temperature", "--full", "none", "--json", cwd=larger.folder).json()["rows"][0]
    assert own["nll"] == pytest.approx(result["references"][1]["nll"], rel=1e-6)
    assert own["accuracy"] == result["references"][0]["accuracy"], "a temperature keeps the order of the classes"


@pytest.mark.parametrize("rescale", ["none", "calibrated"])
def test_norm_beside_the_others_is_the_method(tool: Tool, larger: Project, rescale: str) -> None:
    words = ("--k", K, "--rescale", rescale, "--json")
    beside = tool("evaluate", *words, cwd=larger.folder).json()
    asked = tool("evaluate", "--method", f"gradient,{BESIDE}", *words, "--force", cwd=larger.folder).json()
    assert beside["references"][-1] == asked["rows"][-1]
    assert beside["references"][-1]["method"] == BESIDE
    assert BESIDE not in [row["method"] for row in asked["references"]], "it is shown once"
    assert [row["method"] for row in beside["rows"]] == ["gradient"], "limits apply to what was asked for"


def test_norm_is_not_shown_where_it_would_cost_much(tool: Tool, make) -> None:
    project = make("regression", rows=ROWS)
    without = tool("evaluate", "--k", K, "--full", "none", "--json", cwd=project.folder).json()
    assert [row["method"] for row in without["references"]] == ["map"]
    planned = tool("evaluate", "--k", K, "--dry-run", "--json", cwd=project.folder).json()["files"]
    assert f"predictions-{BESIDE}" in planned


def test_a_temperature_is_fitted_in_folds(tool: Tool, make) -> None:
    project = overconfident(make("binary", rows=ROWS))
    f, _, y = dense(project)
    curves = {
        c: -torch.nn.functional.logsigmoid((2 * y - 1) * f[:, 0] / c**0.5).numpy() for c in np.logspace(-8, 8, 3201)
    }
    fold = torch.randperm(TEST, generator=torch.Generator().manual_seed(0)).numpy() % FOLDS
    expected = np.empty(TEST)
    for number in range(FOLDS):
        expected[fold == number] = curves[best(curves, fold != number)][fold == number]
    result = tool("evaluate", "--k", K, "--dtype", "float64", "--json", cwd=project.folder).json()
    assert result["references"][1]["nll"] == pytest.approx(expected.mean(), abs=1e-4)


def test_the_noise_of_held_out_rows(tool: Tool, make) -> None:
    """The residuals of training rows are too small; those of validation rows are not."""
    project = make("regression", rows=ROWS)
    spec = project.spec["data"]
    spec["splits"] |= {"test": {"rows": "22:60"}, "validation": {"rows": "60:"}}
    project.use(data=spec, posterior={"noise_variance": {"from": "validation"}})
    result = tool("evaluate", *options(project, "--json"), cwd=project.folder).json()
    x, y = project.tensors()
    residual = y[60:] - project.model.double()(x[60:]).detach()
    assert result["noise_variance"] == pytest.approx(float(residual.square().mean()), rel=1e-9)
    fitted = tool("fit", "--k", K, "--dtype", "float64", "--json", cwd=project.folder).json()
    assert fitted["noise_variance"] == result["noise_variance"]


@pytest.mark.parametrize("validation", [False, True])
def test_the_noise_is_calibrated_too_where_asked(tool: Tool, make, validation: bool) -> None:
    """Factor and noise together predict no worse than the factor alone, and a posterior keeps both."""
    project = make("regression", rows=ROWS)
    if validation:
        spec = project.spec["data"]
        spec["splits"] |= {"test": {"rows": "22:60"}, "validation": {"rows": "60:"}}
        project.use(data=spec)
    project.use(posterior={"noise_variance": "calibrated"})
    refused(tool("evaluate", "--k", K, cwd=project.folder), "needs --rescale calibrated")
    result = tool("evaluate", *options(project, "--json"), cwd=project.folder).json()
    fitted = {each["method"]: each for each in result["calibration"]["factors"]}
    c, t, sigma2 = fitted["gradient"]["factor"], fitted["gradient"]["noise_factor"], result["noise_variance"]
    x, y = project.tensors()
    f = project.model.double()(x).detach()
    held_out = slice(60, None) if validation else slice(22, None)
    mean_square = float((y - f)[held_out].square().mean())
    # A parabola through three points an eighth of a decade apart: the likelihood is flat there.
    assert fitted["map"]["noise_factor"] * sigma2 == pytest.approx(mean_square, rel=2e-2)
    path = tool("fit", *options(project, "--json"), cwd=project.folder).json()["artifacts"][
        "posterior-gradient-k12-calibrated"
    ]
    predict = load_predictor(path, project.model.double())
    (_, std), (_, total) = predict(x[22:]), predict.observations(x[22:])
    torch.testing.assert_close(total, (std.square() + t * sigma2).sqrt(), rtol=1e-6, atol=0)
    served = tool("evaluate", "--posterior", path, "--dtype", "float64", "--json", cwd=project.folder).json()
    rows = slice(22, 60) if validation else slice(22, None)
    expected = -torch.distributions.Normal(f[rows], total[: len(f[rows])]).log_prob(y[rows]).mean()
    assert served["rows"][0]["nll"] == pytest.approx(float(expected), rel=1e-6)
    assert served["rows"][0]["ipv"] == pytest.approx(result["rows"][0]["ipv"], rel=1e-9)
    if validation:
        assert result["rows"][0]["nll"] == pytest.approx(float(expected), rel=1e-6)
    assert c > 0


def test_marglik_is_no_guide_to_a_network_that_knows_its_training_rows(tool: Tool, make) -> None:
    project = make("binary", rows=ROWS)
    project.use(posterior={"prior_precision": "marglik"})
    warning = "marglik is no guide here"
    assert warning not in tool("evaluate", "--k", K, cwd=project.folder).err
    known = (project.model(project.tensors()[0].float()).detach() > 0).long()
    project.y[:22] = known[:22].numpy()
    assert 0 < project.y[:22].sum() < 22
    project.write_csv("data.csv", ["a", "b", "c", "y0"], np.hstack([project.x, project.y]))
    err = tool("evaluate", "--k", K, cwd=project.folder).err
    assert f"{warning}: the network classifies 1 of its 22 training rows correctly" in err
    assert "--rescale calibrated" in err


def test_the_rows_to_look_at_first(tool: Tool, larger: Project) -> None:
    """In the order of their uncertainty, with and without targets, from a posterior alone, too."""
    result = tool("evaluate", *options(larger, "--review", 7, "--json"), cwd=larger.folder).json()
    review, c = result["review"], result["rows"][0]["rescale"]
    f, covariance, y = dense(larger)
    if larger.task == "regression":
        uncertain = (c * covariance[:, 0, 0] + NOISE).sqrt()
        assert [row["total_std"] for row in review["rows"]] == pytest.approx(
            uncertain.sort(descending=True)[0][:7].tolist()
        )
    else:
        uncertain = 1 - reference.class_probabilities(larger.task, f, c * covariance).amax(1)
        assert {"predicted", "entropy", "mutual_information", "confidence"} <= review["rows"][0].keys()
    order = uncertain.argsort(descending=True)[:7]
    assert [row["row"] for row in review["rows"]] == (22 + order).tolist()
    assert [row["target"] for row in review["rows"]] == pytest.approx(y[order].flatten().tolist())
    for kind in ("table", "markdown"):
        text = tool("evaluate", *options(larger, "--review", 7, "--format", kind), cwd=larger.folder).out
        assert f"test rows that gradient (k = {K}) is most uncertain of:" in text
    path = tool("fit", *options(larger, "--json"), cwd=larger.folder).json()["artifacts"][
        "posterior-gradient-k12-calibrated"
    ]
    served = tool(
        "evaluate", "--posterior", path, "--dtype", "float64", "--review", 3, "--json", cwd=larger.folder
    ).json()
    assert [row["row"] for row in served["review"]["rows"]] == (22 + order[:3]).tolist()
    refused(tool("evaluate", "--review", 0, cwd=larger.folder), "--review 0 is not a positive integer")


def test_draws_are_calibrated_too(tool: Tool, larger: Project) -> None:
    path = larger.folder / "draws.jsonl"
    run = tool("evaluate", *options(larger, "--samples", 400, "--predictions", path), cwd=larger.folder)
    assert run.code == 0, run.err
    for line in map(json.loads, path.read_text().splitlines()[:10]):
        draws = np.array([line[f"sample_{i}"] for i in range(1, 401)])
        assert draws.std() == pytest.approx(line["std"], rel=0.2)


def by_name(run, method: str) -> dict:
    result = run.json()
    return next(row for row in (*result["rows"], *result["references"]) if row["method"] == method)


def test_the_verdict(tool: Tool, make) -> None:
    """Labels that the network does not know: any certainty is too much, and a small prior variance too little."""
    project = make("multiclass", 3, rows=ROWS)
    project.use(posterior={"prior_precision": 1e-4})
    run = tool("evaluate", "--k", K, "--format", "table", cwd=project.folder)
    assert "to the probabilities here: NLL " in run.out
    result = tool("evaluate", "--k", K, "--json", cwd=project.folder)
    verdict = result.json()["verdict"]
    assert len(verdict["text"]) == 2
    for line in verdict["text"]:
        assert line in run.out
    assert f"NLL {by_name(result, 'map')['nll']:.4g} → {by_name(result, 'gradient')['nll']:.4g} " in run.out
    assert "First check the network: at its own training rows" in run.out
    share = by_name(result, "gradient")["w2_relative"]
    assert f"{math.ceil(100 * share)} % " in verdict["text"][1]
    assert verdict["text"][1].startswith(f"With {K} of {project.size} parameters")
    for kind in ("table", "markdown"):
        quiet = tool("evaluate", "--k", K, "--format", kind, "-q", cwd=project.folder)
        assert "The posterior" not in quiet.out + quiet.err
        assert "With " not in quiet.out
    assert tool("evaluate", "--k", K, "--json", "-q", cwd=project.folder).json()["verdict"] == verdict
    by_method = {each["method"]: each for each in verdict["nll_against_map"]}
    assert by_method["map"]["better_by"] == 0.0
    rows = {row["method"]: row for row in (*result.json()["rows"], *result.json()["references"])}
    gain = rows["map"]["nll"] - rows["gradient"]["nll"]
    assert by_method["gradient"]["better_by"] == pytest.approx(gain, abs=1e-12)
    for line in verdict["text"]:
        assert line in result.err
    again = tool("evaluate", "--method", "full", "--json", cwd=project.folder).json()["verdict"]
    assert [each["method"] for each in again["nll_against_map"]].count("full") == 1


def test_a_posterior_that_is_worse_than_map_is_said_to_be(tool: Tool, make) -> None:
    project = make("regression", rows=ROWS)
    project.use(posterior={"noise_variance": 2.0, "prior_precision": 1e-3})
    result = tool("evaluate", "--k", 41, "--json", cwd=project.folder)
    assert "The posterior makes the predictions worse here: NLL " in result.err
    assert "First check the network: at its own training rows" in result.err
    better = tool("evaluate", "--k", 41, "--rescale", "calibrated", "--json", cwd=project.folder)
    assert "--rescale calibrated" not in better.err
    assert better.json()["rows"][0]["nll"] < result.json()["rows"][0]["nll"]


def test_what_is_refused(tool: Tool, project: Project) -> None:
    refused(tool("evaluate", "--rescale", "calibrated", "--folds", 1, cwd=project.folder), "--folds 1 is too few")
    refused(tool("evaluate", "--rescale", "calibrated", "--folds", 9, cwd=project.folder), "8 test rows are too few")
    refused(tool("evaluate", "--rescale", "calibrate", cwd=project.folder), "calibrated")


def test_little_memory_gives_the_same_result(tool: Tool, larger: Project) -> None:
    found = tool("evaluate", *options(larger, "--json"), cwd=larger.folder).json()
    again = tool("evaluate", *options(larger, "--json", "--memory", "1MiB", "--recompute"), cwd=larger.folder).json()
    assert again["rows"][0]["nll"] == pytest.approx(found["rows"][0]["nll"], rel=1e-9)
    assert again["rows"][0]["rescale"] == pytest.approx(found["rows"][0]["rescale"], rel=1e-6)
