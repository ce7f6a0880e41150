"""Commands on networks with many classes: training rows through a few random combinations of their outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from cli.cli_tools import Project, core
from commands.in_process import Notes, result_of
from core.problems import assert_close
from safetensors.torch import load_file

from sublaplace_cli import load_predictor
from sublaplace_cli.cli.advice import hint_of
from sublaplace_cli.cli.settings import Settings
from sublaplace_cli.core.likelihoods.multiclass import Multiclass
from sublaplace_cli.errors import RunError, UserError
from sublaplace_cli.run.rows import passes as passes_module
from sublaplace_cli.run.rows.sampled import SampledPasses

CLASSES = 40


def run(project: Project, command: str = "evaluate", reporter: Notes | None = None, **options: Any) -> dict[str, Any]:
    folder = options.pop("run_dir", project.folder / "run")
    settings = Settings(spec=project.folder / "sublaplace.yaml", run_dir=folder, **options)
    return result_of(command, settings, reporter or Notes())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "p", "multiclass", CLASSES)


def with_hessian(project: Project, hessian: Any) -> Project:
    return project.use(posterior={"prior_precision": 1.0, "hessian": hessian})


def test_many_classes_are_sampled_by_default_and_the_note_says_so(project: Project) -> None:
    notes = Notes()
    result = run(project, reporter=notes, k="20,300")
    assert [row["k"] for row in result["rows"]] == [20, 300]
    assert all(row["w2"] is not None and row["nll"] is not None for row in result["rows"])
    assert result["n_outputs"] == CLASSES
    assert result["provenance"]["hessian"] == "sampled: 8"
    said = [note for note in notes.said if "random combinations" in note]
    assert len(said) == 1
    assert "40 outputs" in said[0]
    assert "posterior.hessian: exact" in said[0]
    rows = load_file(project.folder / "run" / "jacobians-train.safetensors")
    assert rows["outputs"].shape == (22, CLASSES)
    assert rows["J/0.weight/deltas"].shape == (22, 8, 1, 8)
    assert load_file(project.folder / "run" / "jacobians-test.safetensors")["J/0.weight/deltas"].shape[1] == CLASSES


def test_up_to_32_classes_and_on_request_all_outputs_are_used(tmp_path: Path, project: Project) -> None:
    few, notes = Project(tmp_path / "few", "multiclass", 32), Notes()
    assert run(few, reporter=notes, k="20")["provenance"]["hessian"] == "exact"
    assert run(with_hessian(project, "exact"), reporter=notes, k="20")["provenance"]["hessian"] == "exact"
    assert not [note for note in notes.said if "combinations" in note]
    all_of_them = with_hessian(few, {"sampled": 32})
    assert run(all_of_them, reporter=notes, run_dir=few.folder / "b", k="20")["provenance"]["hessian"] == "exact"
    assert "posterior.hessian: {sampled: 32} is exact for 32 outputs" in notes.said


def test_the_posterior_is_that_of_the_dense_omega_with_the_same_combinations(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From data to the stored covariances, full and of sub-networks in both forms."""
    drawn: list[torch.Tensor] = []
    combine = Multiclass.combinations

    def remembered(self: Multiclass, *args: Any) -> torch.Tensor:
        drawn.append(combine(self, *args))
        return drawn[-1]

    monkeypatch.setattr(Multiclass, "combinations", remembered)
    run(project, k="20,300", dtype="float64")
    x = project.tensors()[0]
    model = project.model.double()
    _, J = reference.jacobian(model, x, len(x))
    rows = torch.cat(drawn)[-22:]  # those before are of rows that were timed
    A = torch.einsum("ncs,ncp->nsp", rows, J[:22])
    eye = torch.eye(8, dtype=torch.float64).expand(22, 8, 8)
    omega = reference.precision(A, eye, torch.ones(project.size, dtype=torch.float64))
    folder = project.folder / "run"
    for k in (20, 300):
        S = load_file(folder / f"indices-gradient-k{k}.safetensors")["indices"]
        assert S.tolist() == reference.gradient_selection(A.square().sum((0, 1)), 1.0, k)
        found = load_file(folder / f"predictions-gradient-k{k}.safetensors")["covariance"]
        assert_close(found, reference.subnet_covariance(J[22:], omega, S))
    found = load_file(folder / f"predictions-full-k{project.size}.safetensors")["covariance"]
    assert_close(found, reference.subnet_covariance(J[22:], omega, torch.arange(project.size)))


def test_the_seed_decides_and_nothing_else(project: Project) -> None:
    """Memory limits, stored or recomputed rows and smaller passes give the same combinations."""
    expected = run(project, k="20,300")
    recomputed = {"memory": "100kB", "max_artifact": "1KB", "full": "none", "k": "20"}
    for number, options in enumerate([{"memory": "40MB"}, {"max_artifact": "1KB"}, recomputed]):
        found = run(project, run_dir=project.folder / str(number), **{"k": "20,300", **options})
        for row, other in zip(found["rows"], expected["rows"], strict=False):
            # float32 passes over fewer rows round differently
            assert row["nll"] == pytest.approx(other["nll"], rel=1e-6)
            assert row["ipv"] == pytest.approx(other["ipv"], rel=1e-5)
    other_seed = run(project, k="20,300", seeds=(1,), run_dir=project.folder / "seed")
    assert other_seed["rows"][1]["ipv"] != pytest.approx(expected["rows"][1]["ipv"], rel=1e-4)
    spread = run(project, k="300", seeds=(0, 1), run_dir=project.folder / "sweep")["mean"][0]
    assert 0 < spread["ipv_se"] < 0.1 * spread["ipv"]
    again = run(project, k="20,300", run_dir=project.folder / "again")
    assert core(again)["rows"] == core(expected)["rows"]


def test_combinations_do_not_depend_on_the_rows_of_a_pass(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    by_row: dict[int, list[torch.Tensor]] = {}
    whole = SampledPasses.combinations

    def remembered(self: SampledPasses, split: Any, start: int, stop: int) -> torch.Tensor:
        found = whole(self, split, start, stop)
        for row, own in zip(range(start, stop), found, strict=True):
            by_row.setdefault(row, []).append(own)
        return found

    monkeypatch.setattr(SampledPasses, "combinations", remembered)
    for size in (1, 3, 8, 32):
        monkeypatch.setattr(SampledPasses, "rows_per_pass", lambda self, split, size=size: size)
        run(project, k="5", run_dir=project.folder / str(size))
    assert sorted(by_row) == list(range(22))
    for found in by_row.values():
        assert len(found) >= 4
        assert all(torch.equal(found[0] != 0, own != 0) for own in found)
        assert all(torch.allclose(found[0], own, rtol=1e-12, atol=0) for own in found)


def test_a_training_row_costs_as_many_backward_passes_as_combinations(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: dict[str, int] = {"train": 0, "test": 0}
    inside: list[str] = []
    whole, grad = passes_module.Passes.__call__, torch.autograd.grad

    def passed(self: Any, split: Any, start: int, stop: int) -> Any:
        inside.append("train" if isinstance(self, SampledPasses) else "test")
        try:
            return whole(self, split, start, stop)
        finally:
            inside.pop()

    def graded(*args: Any, **more: Any) -> Any:
        if inside:
            counted[inside[-1]] += 1
        return grad(*args, **more)

    monkeypatch.setattr(passes_module.Passes, "__call__", passed)
    monkeypatch.setattr(torch.autograd, "grad", graded)
    run(project, k="20", dtype="float64")  # which is compared with nothing
    passes_over = {"train": -(-22 // 8), "test": 1}  # of 8 rows each
    assert counted == {"train": 8 * passes_over["train"], "test": CLASSES * passes_over["test"]}


def test_a_posterior_in_dual_form_predicts_alone(project: Project) -> None:
    """The file says how many rows of A it has; serving and --posterior use it."""
    expected = run(project, k="300")["rows"][0]
    path = project.folder / "run" / "posterior-gradient-k300.safetensors"
    assert load_file(path)["columns"].shape == (300, 22 * 8)
    alone = run(project, posterior=path)
    assert alone["rows"][0]["nll"] == pytest.approx(expected["nll"], rel=1e-6)
    assert alone["provenance"]["hessian"] == "sampled: 8"
    predict = load_predictor(path, project.model)
    _, std = predict(project.x[22:].astype(np.float32))
    stored = load_file(project.folder / "run" / "predictions-gradient-k300.safetensors")["std"]
    assert torch.allclose(std.double(), stored, rtol=1e-4)


REFUSED = {
    "left-out variances": ({"rescale": "scale", "k": "5"}, "--rescale scale needs all 40 outputs"),
    "hybrid": ({"rescale": "hybrid", "k": "5"}, "--rescale hybrid needs all 40 outputs"),
    "norm": ({"method": "norm"}, "--method norm needs all 40 outputs"),
    "constant": ({"method": "constant"}, "--method constant needs all 40 outputs"),
    "Algorithm 1 to the letter": ({"k": "5", "score": "unweighted"}, "--score unweighted needs all outputs"),
    "the variance of every output": ({"k": "5", "method": "variance"}, "needs all outputs of the reference rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_all_outputs_is_refused_and_runs_with_exact(project: Project, case: str) -> None:
    options, words = REFUSED[case]
    with pytest.raises(UserError) as refusal:
        run(project, **options)
    assert words in refusal.value.message
    assert "posterior.hessian: exact" in (hint_of(refusal.value) or "")
    assert not list(project.folder.glob("run/*.safetensors"))
    if case != "hybrid":
        assert run(with_hessian(project, "exact"), **options)["rows"]


@pytest.mark.parametrize("options", [{"method": "variance", "k": "3"}, {"score": "unweighted", "k": "3"}])
def test_the_test_rows_have_all_outputs(project: Project, options: dict[str, str]) -> None:
    assert run(project, reference="test", **options)["rows"][0]["k"] == 3


def test_every_other_method_works(project: Project) -> None:
    methods = "gradient,greedy,subnet-diagonal,last-k,neural-linear,random,magnitude,full,map,diagonal"
    rows = run(project, method=methods, k="10")["rows"]
    assert [row["nll"] is not None for row in rows] == [True] * 10


def test_tuning_uses_all_outputs_for_the_fit_and_combinations_for_omega(project: Project) -> None:
    project.use(posterior={"prior_precision": "marglik"})
    tuned = run(project, k="10")["tuned"]
    assert tuned["log_evidence"] > tuned["start"]["log_evidence"] - 1e-9
    splits = {**project.spec["data"]["splits"], "validation": {"rows": "22:26"}, "test": {"rows": "26:"}}
    project.use(data={**project.spec["data"], "splits": splits}, posterior={"prior_precision": {"tune": "nll"}})
    assert run(project, k="10", run_dir=project.folder / "nll")["tuned"]["nll"] > 0


def with_splits(project: Project, **splits: Any) -> Project:
    splits = {"train": {"rows": "0:22"}, "test": {"rows": "22:"}, **splits}
    return project.use(data={**project.spec["data"], "splits": splits})


def stored_outputs(project: Project) -> dict[str, int]:
    """Outputs of each stored Jacobian."""
    files = (project.folder / "run").glob("jacobians-*.safetensors")
    return {path.stem.removeprefix("jacobians-"): load_file(path)["J/0.weight/deltas"].shape[1] for path in files}


SAME_ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, int]]] = {
    "test is train": ({"test": {"same_as": "train"}}, {}, {"train": 8, "test": CLASSES}),
    "train is test": ({"train": {"same_as": "test"}}, {}, {"train": 8, "test": CLASSES}),
    "reference is test": ({"reference": {"same_as": "test"}}, {}, {"train": 8, "test": CLASSES}),
    "reference is its own": (
        {"reference": {"rows": "0:9"}, "test": {"same_as": "reference"}},
        {},
        {"train": 8, "reference": 8, "test": CLASSES},
    ),
    "validation is train, calibrated": (
        {"validation": {"same_as": "train"}},
        {"rescale": "calibrated"},
        {"train": 8, "test": CLASSES, "validation": CLASSES},
    ),
    "validation is test is train, calibrated": (
        {"test": {"same_as": "train"}, "validation": {"same_as": "test"}},
        {"rescale": "calibrated"},
        {"train": 8, "test": CLASSES, "validation": CLASSES},
    ),
}


@pytest.mark.parametrize("case", SAME_ROWS)
def test_predicted_rows_have_all_outputs_though_they_are_training_rows(project: Project, case: str) -> None:
    splits, options, expected = SAME_ROWS[case]
    result = run(with_splits(project, **splits), k="10,300", **options)
    assert stored_outputs(project) == expected
    assert all(row["nll"] is not None for row in result["rows"])
    assert {f"jacobians-{name}" for name in ("train", "test")} <= set(result["artifacts"])
    planned = run(project, dry_run=True, k="10,300", run_dir=project.folder / "plan", **options)
    assert {name for name in planned["files"] if "jacobians" in name} == {f"jacobians-{name}" for name in expected}


def test_a_tuned_prior_takes_all_outputs_of_validation_rows(project: Project) -> None:
    project.use(posterior={"prior_precision": {"tune": "nll"}})
    result = run(with_splits(project, validation={"same_as": "train"}), k="10")
    assert result["tuned"]["nll"] <= result["tuned"]["start"]["nll"]
    assert stored_outputs(project) == {"train": 8, "test": CLASSES, "validation": CLASSES}


def test_scores_over_test_rows_are_not_those_of_the_same_sampled_rows(project: Project) -> None:
    """They are two runs, though the rows are the same ones."""
    with_splits(project, train={"same_as": "test"})
    sampled, exact = run(project, k="10"), run(project, k="10", reference="test", run_dir=project.folder / "exact")
    assert sampled["provenance"]["fingerprint"] != exact["provenance"]["fingerprint"]
    scores = [load_file(project.folder / name / "scores.safetensors")["score"] for name in ("run", "exact")]
    assert not torch.allclose(*scores, rtol=1e-3)


@pytest.mark.parametrize("validation", [None, {"rows": "50:"}], ids=["folds", "validation"])
def test_calibration(tmp_path: Path, validation: Any) -> None:
    """Its factors are fitted to all outputs; norm and constant then need no left-out variances."""
    project = Project(tmp_path / "p", "multiclass", CLASSES, rows=62)
    if validation is not None:
        with_splits(project, test={"rows": "22:50"}, validation=validation)
    methods = "gradient,norm,constant,full,diagonal"
    options = {"method": methods, "k": "20", "rescale": "calibrated"}
    planned = run(project, dry_run=True, **options)["files"]
    result = run(project, **options)
    assert set(planned) == {path.stem for path in project.folder.glob("run/*.safetensors")}
    alone = run(project, dry_run=True, method="norm", rescale="calibrated", full="none", run_dir=project.folder / "b")
    assert not [name for name in alone["files"] if "full" in name]
    plain = run(project, method="gradient", k="20", run_dir=project.folder / "plain")
    assert result["calibration"]["split"] == ("test" if validation is None else "validation")
    by_method = {row["method"]: row for row in result["rows"]}
    assert [by_method[name]["nll"] is not None for name in methods.split(",")] == [True] * 5
    rivals = {row["method"]: row for row in result["references"]}
    assert set(rivals) == {"map", "temperature", "constant, calibrated"}
    assert rivals["constant, calibrated"]["nll"] == pytest.approx(by_method["constant"]["nll"], rel=1e-9)
    assert {row["method"] for row in plain["references"]} == set(rivals)
    # A posterior keeps its factor; `predictions-*` are those before the calibration.
    path = project.folder / "run" / "posterior-gradient-k20-calibrated.safetensors"
    _, std = load_predictor(path, project.model)(project.x[22:50].astype(np.float32))
    before = load_file(project.folder / "run" / "predictions-gradient-k20.safetensors")["std"][:28]
    assert torch.allclose(std.double(), before * by_method["gradient"]["rescale"] ** 0.5, rtol=1e-4)


def test_the_plan_says_what_each_costs(project: Project) -> None:
    planned = run(project, dry_run=True, k="20")
    assert planned["hessian"] == "sampled"
    assert planned["hessian_exact"]["backward_passes_per_row"] == CLASSES
    assert planned["hessian_sampled"]["backward_passes_per_row"] == 8
    assert planned["hessian_exact"]["bytes_of_gram_matrix"] == 8 * (22 * CLASSES) ** 2
    assert planned["hessian_sampled"]["bytes_of_gram_matrix"] == 8 * (22 * 8) ** 2
    assert planned["hessian_sampled"]["bytes_of_jacobian"] == 22 * 4 * (3 + 8 * 8 + 8 + 8 * CLASSES)
    assert planned["files"][f"posterior-full-k{project.size}"] == 8 * (22 * 8) ** 2
    exact = run(with_hessian(project, "exact"), dry_run=True, k="20")
    assert exact["hessian"] == "exact"
    for name in ("hessian_exact", "hessian_sampled"):
        assert exact[name] == planned[name]
    assert exact["files"][f"posterior-full-k{project.size}"] == 8 * (22 * CLASSES) ** 2


def test_the_plan_of_few_outputs_is_silent(tmp_path: Path) -> None:
    assert not [key for key in run(Project(tmp_path / "few", "multiclass", 3), dry_run=True) if "hessian" in key]


def test_covariances_that_do_not_fit_are_refused_early(tmp_path: Path) -> None:
    project = Project(tmp_path / "wide", "multiclass", 400, rows=80)
    with pytest.raises(RunError, match="covariances of 400 outputs at 58 test rows need about") as found:
        run(project, memory="100MB")
    assert "data.splits.test.n" in str(found.value)
    planned = run(project, memory="200MB", dry_run=True)
    assert planned["n_outputs"] == 400
