"""Out-of-distribution rows through the command line: metrics, sets by name, gates, calibration, pictures."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from cli.cli_tools import Project, Tool, refused
from sklearn.metrics import roc_auc_score, roc_curve

TASKS = {"regression": 1, "binary": 1, "multiclass": 3}
METHODS = ("--method", "gradient,full,constant", "--k", "20", "--json")
AREAS = ("ood_auroc_std", "ood_auroc_entropy", "ood_auroc_mi")


def with_ood(project: Project, rows: int = 12) -> Project:
    """Three sets, the first ones nearer to the data; their files have no target, or one that nobody knows."""
    rng = np.random.default_rng(3)
    for name, distance in (("near", 1.5), ("far", 8.0), ("same", 0.0)):
        x = rng.normal(size=(rows, 3))
        x = x + distance * x / np.linalg.norm(x, axis=1, keepdims=True)
        project.write_csv(f"{name}.csv", ["a", "b", "c", "y0"], np.column_stack([x, np.full(rows, 77.0)]))
    project.spec["data"]["splits"]["ood"] = {"near": {"path": "near.csv"}, "far": {"path": "far.csv", "rows": "0:11"}}
    project.save()
    return project


@pytest.fixture(params=TASKS)
def project(request, make) -> Project:
    return with_ood(make(request.param, TASKS[request.param], rows=60))


def by_method(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in rows}


def predictions(tool: Tool, project: Project, path: str, *more: Any) -> np.ndarray:
    """σ of each row of a file, predicted as test rows: the mean over outputs."""
    spec = json.loads(json.dumps(project.spec))
    spec["data"]["splits"] |= {"test": {"path": path}, "ood": None}
    project.save(spec, "other.yaml")
    run = tool("evaluate", "--spec", "other.yaml", "--predictions", "p.jsonl", "--overwrite", *more, cwd=project.folder)
    assert run.code == 0, run.err
    lines = [json.loads(line) for line in (project.folder / "p.jsonl").read_text().splitlines()]
    rows = sorted({line["row"] for line in lines})
    return np.array([np.mean([line["std"] for line in lines if line["row"] == row]) for row in rows])


def test_every_method_and_every_set(tool: Tool, project: Project) -> None:
    result = tool("evaluate", *METHODS, cwd=project.folder).json()
    assert list(result["ood"]) == ["near", "far"]
    assert [result["ood"][name]["rows"] for name in ("near", "far")] == [12, 11]
    sets = {name: by_method(own["methods"]) for name, own in result["ood"].items()}
    rows = by_method([*result["rows"], *result["references"]])
    assert set(rows) == set(sets["near"]) == set(sets["far"])
    classes = project.task != "regression"
    for method, row in rows.items():
        for score in ("std", "entropy", "mi"):
            areas, passed = ([own[method][f"{kind}_{score}"] for own in sets.values()] for kind in ("auroc", "fpr95"))
            if row[f"ood_auroc_{score}"] is None:
                assert row["why"][f"ood_auroc_{score}"]
                assert areas == passed == [None, None]
            else:
                assert (row[f"ood_auroc_{score}"], row[f"ood_fpr95_{score}"]) == (min(areas), max(passed))
    assert rows["gradient"]["ood_auroc_std"] is not None
    assert (rows["gradient"]["ood_auroc_mi"] is not None) is classes
    assert rows["map"]["ood_auroc_std"] is None
    assert "no variance" in rows["map"]["why"]["ood_auroc_std"]
    assert (rows["map"]["ood_auroc_entropy"] is not None) is classes
    assert (rows["constant"]["ood_auroc_std"], rows["constant"]["ood_fpr95_std"]) == (0.5, 1.0)
    assert sets["far"]["full"]["auroc_std"] > 0.9
    assert sets["far"]["full"]["auroc_std"] > sets["near"]["full"]["auroc_std"] > 0.5


def test_sigma_is_that_of_the_same_rows_as_test_rows(tool: Tool, make) -> None:
    project = with_ood(make(rows=60))
    project.use(posterior={"noise_variance": 0.3})
    more = ("--k", 20, "--dtype", "float64")
    result = tool("evaluate", *more, "--json", cwd=project.folder).json()
    test, far = (predictions(tool, project, path, *more) for path in ("data.csv", "far.csv"))
    test, far = test[22:], far[:11]
    own = by_method(result["ood"]["far"]["methods"])["gradient"]
    truth, sigma = np.repeat([0, 1], [len(test), len(far)]), np.concatenate([test, far])
    assert own["auroc_std"] == pytest.approx(roc_auc_score(truth, sigma), abs=1e-12)
    fpr, tpr, _ = roc_curve(1 - truth, -sigma, drop_intermediate=False)
    assert own["fpr95_std"] == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-12)


def test_one_set_is_called_ood_and_a_gate_applies(tool: Tool, make) -> None:
    project = with_ood(make(rows=60))
    project.spec["data"]["splits"]["ood"] = {"path": "far.csv"}
    project.save()
    result = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()
    assert list(result["ood"]) == ["ood"]
    area = result["rows"][0]["ood_auroc_std"]
    assert area == by_method(result["ood"]["ood"]["methods"])["gradient"]["auroc_std"]
    for limit, code in ((f"ood_auroc_std < {area - 0.01}", 0), (f"ood_auroc_std < {area + 0.01}", 1)):
        assert tool("evaluate", "--k", 20, "--fail-if", limit, cwd=project.folder).code == code
    table = tool("evaluate", "--k", 20, "--format", "markdown", cwd=project.folder).out
    assert "ood_auroc_std" in table
    assert "entropy" not in table
    assert "jacobians-ood" in result["artifacts"]
    again = tool("evaluate", "--k", 20, "--json", cwd=project.folder)
    assert "jacobians-ood" in again.err  # reused
    assert again.json()["ood"] == result["ood"]


def test_without_the_split_there_is_a_reason_and_no_column(tool: Tool, make) -> None:
    project = make("multiclass", 3)
    result = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()
    for name in AREAS:
        assert result["rows"][0][name] is None
        assert result["rows"][0]["why"][name] == "no split ood in the spec"
    assert "ood" not in result
    assert "ood" not in tool("evaluate", "--k", 20, "--format", "markdown", cwd=project.folder).out
    judged = tool("evaluate", "--k", 20, "--fail-if", "ood_auroc_std < 0.8", cwd=project.folder)
    assert judged.code == 4
    assert "no split ood in the spec" in judged.err


def test_a_calibrated_run_uses_one_factor(tool: Tool, project: Project) -> None:
    """σ ranks as without a factor, though each fold of the test rows has its own."""
    words = ("evaluate", "--method", "gradient,norm", "--k", 20, "--full", "none", "--json")
    rescaled = tool(*words, "--rescale", "calibrated", "--folds", 3, cwd=project.folder).json()
    plain = tool("evaluate", "--method", "gradient", "--k", 20, "--json", cwd=project.folder).json()
    found, before = (by_method(own["ood"]["far"]["methods"])["gradient"] for own in (rescaled, plain))
    assert (found["auroc_std"], found["fpr95_std"]) == (before["auroc_std"], before["fpr95_std"])
    factors = by_method(rescaled["calibration"]["factors"])
    if project.task != "regression":
        assert found["auroc_entropy"] != before["auroc_entropy"] or factors["gradient"]["factor"] == 1.0
        assert {"map", "temperature", "constant, calibrated"} <= set(by_method(rescaled["ood"]["far"]["methods"]))
    assert len(set(factors["gradient"]["by_fold"])) > 1


def test_a_prior_that_is_tuned_in_folds_is_one_prior_here(tool: Tool, make) -> None:
    """Each fold of the test rows has its own prior; rows are told apart with the common one."""
    project = with_ood(make("multiclass", 3, rows=60))
    project.use(posterior={"prior_precision": {"tune": "nll"}})
    tuned = tool("evaluate", *METHODS, cwd=project.folder).json()
    assert len(set(tuned["tuned"]["by_fold"])) > 1
    project.use(posterior={"prior_precision": tuned["prior_precision"]})
    fixed = tool("evaluate", *METHODS, cwd=project.folder).json()
    for name in ("near", "far"):
        found, expected = (by_method(own["ood"][name]["methods"]) for own in (tuned, fixed))
        for method in ("gradient", "full", "map"):
            assert found[method] == pytest.approx(expected[method], abs=1e-9), method


def test_a_set_may_have_the_name_of_a_split(tool: Tool, make) -> None:
    project = with_ood(make(rows=60))
    project.spec["data"]["splits"]["ood"] = {"test": {"path": "far.csv"}, "train": {"path": "near.csv"}}
    project.save()
    words = ("evaluate", "--k", 20, "--plot", "a.svg", "--plot-kind", "ood", "--json")
    assert list(tool(*words, cwd=project.folder).json()["ood"]) == ["test", "train"]
    said = (project.folder / "a.svg").read_text()
    assert all(f"<!-- {name} -->" in said for name in ("test rows", "test", "train"))


def test_a_temperature_keeps_two_classes_in_order(tool: Tool, make) -> None:
    """The entropy of one logit falls with its size, whatever the temperature: so its AUROC is that of the network."""
    project = with_ood(make("binary", rows=60))
    words = ("evaluate", "--method", "temperature", "--full", "none", "--json")
    result = tool(*words, cwd=project.folder).json()
    for own in result["ood"].values():
        rows = by_method(own["methods"])
        assert rows["temperature"]["auroc_entropy"] == rows["map"]["auroc_entropy"]
        assert rows["temperature"]["auroc_std"] is None


def test_a_stored_posterior(tool: Tool, project: Project) -> None:
    result = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()
    file = next(path for name, path in result["artifacts"].items() if name.startswith("posterior-gradient"))
    served = tool("evaluate", "--posterior", file, "--json", cwd=project.folder).json()
    for name in ("near", "far"):
        found, before = (by_method(own["ood"][name]["methods"])["gradient"] for own in (served, result))
        assert found == pytest.approx(before, abs=1e-9)
    assert served["rows"][0]["ood_auroc_std"] == pytest.approx(result["rows"][0]["ood_auroc_std"], abs=1e-9)


def test_a_sweep_has_the_mean_and_the_sets_of_each_run(tool: Tool, make) -> None:
    project = with_ood(make(rows=60))
    words = ("evaluate", "--method", "random", "--k", 20, "--seed", 0, "--seed", 1, "--json")
    result = tool(*words, cwd=project.folder).json()
    values = [row["ood_auroc_std"] for row in result["rows"]]
    assert result["mean"][0]["ood_auroc_std"] == pytest.approx(sum(values) / 2)
    for member, value in zip(result["checkpoints"], values, strict=True):
        assert min(by_method(own["methods"])["random"]["auroc_std"] for own in member["ood"].values()) == value


def test_a_dry_run_counts_them(tool: Tool, make) -> None:
    project = with_ood(make(rows=60))
    found = tool("evaluate", "--k", 20, "--dry-run", "--json", cwd=project.folder).json()
    assert (found["n_ood.near"], found["n_ood.far"]) == (12, 11)
    assert {"jacobians-ood.near", "jacobians-ood.far"} <= set(found["files"])
    fitted = tool("fit", "--k", 20, "--dry-run", "--json", cwd=project.folder).json()
    assert not any("ood" in name for name in (*fitted, *fitted["files"]))


def test_other_commands_do_not_read_them(tool: Tool, make) -> None:
    project = with_ood(make(rows=60))
    run = tool("fit", "--k", 20, "--json", cwd=project.folder).json()
    assert not any("ood" in name for name in run["artifacts"])


def test_a_spec_without_them_keeps_its_fingerprint(tool: Tool, make) -> None:
    project = make(rows=60)
    plain = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()["provenance"]
    project.spec["data"]["splits"]["ood"] = None
    project.save()
    same = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()["provenance"]
    assert same == plain
    other = tool("evaluate", "--k", 20, "--json", cwd=with_ood(project).folder).json()["provenance"]
    assert other["fingerprint"] != plain["fingerprint"]
    assert other["rows_sha256"] != plain["rows_sha256"]


def test_the_picture_says_what_is_what(tool: Tool, project: Project) -> None:
    words = ("evaluate", *METHODS[:-1], "--plot", "a.svg", "--plot-kind", "ood", "--report", "r.html")
    assert tool(*words, cwd=project.folder).code == 0
    said = " ".join(re.findall(r"<!-- (.*?) -->", (project.folder / "a.svg").read_text()))
    for word in ("test rows", "near", "far", "AUROC", "gradient", "full", "share of the rows", "σ, mean over outputs"):
        assert word in said, word
    classes = project.task != "regression"
    for word in ("predictive entropy", "mutual information", "map", "no variance"):
        assert (word in said) is classes, word
    assert "Test rows and out-of-distribution rows" in (project.folder / "r.html").read_text()


def test_what_is_refused(tool: Tool, make) -> None:
    project = with_ood(make())
    words = ("evaluate", "--method", "map", "--full", "none", "--plot", "a.png", "--plot-kind", "ood")
    refused(tool(*words, cwd=project.folder), "--plot-kind ood", "has a variance")
    splits = project.spec["data"]["splits"]
    splits["ood"] = {"far": {"path": "nowhere.csv"}}
    project.save()
    refused(tool("evaluate", cwd=project.folder), "data.splits.ood.far.path", "nowhere.csv")
    project.write_csv("narrow.csv", ["a", "b"], np.zeros((4, 2)))
    splits["ood"] = {"path": "narrow.csv"}
    project.save()
    refused(tool("evaluate", cwd=project.folder), "narrow.csv", "no column 'c'")


def test_images_of_another_shape_are_explained(tool: Tool, project: Project) -> None:
    project.npz()
    np.savez(project.folder / "far.npz", x=torch.randn(4, 5).numpy())
    project.spec["data"]["splits"]["ood"] = {"path": "far.npz"}
    project.save()
    refused(tool("evaluate", "--k", 5, cwd=project.folder), "ood")
