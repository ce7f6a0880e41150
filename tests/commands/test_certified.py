"""`--full certified` and `auto`: the exact posterior's numbers within what they claim, resumed where they stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli.cli_tools import Project
from commands.in_process import Notes, result_of
from safetensors.torch import load_file

from sublaplace_cli.cli.settings import Settings
from sublaplace_cli.core.posterior.certified import intervals
from sublaplace_cli.core.posterior.certified.system import System
from sublaplace_cli.errors import NumericsError, UserError
from sublaplace_cli.run.full import certifier

TASKS = pytest.mark.parametrize(("task", "outputs"), [("regression", 1), ("binary", 1), ("multiclass", 3)])
METHODS = "gradient,sketch,norm,constant"


def made(folder: Path, task: str = "regression", outputs: int = 1, rows: int = 60) -> Project:
    project = Project(folder, task, outputs, rows)
    splits = {"train": {"rows": f"0:{rows - 10}"}, "test": {"rows": f"{rows - 10}:"}}
    return project.use(data={**project.spec["data"], "splits": splits})


def run(project: Project, name: str = "run", notes: Notes | None = None, **options: Any) -> dict[str, Any]:
    where = {"spec": project.folder / "sublaplace.yaml", "run_dir": project.folder / name}
    return result_of("evaluate", Settings(**where, **{"k": "5", "method": METHODS, **options}), notes or Notes())


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preconditioner that leaves something to do, and a sample that is not all training rows."""
    monkeypatch.setattr(certifier, "PRECONDITIONER_RANK", 3)
    monkeypatch.setattr(certifier, "SAMPLED_OUTPUTS", 24)


@TASKS
@pytest.mark.parametrize("tolerance", [0.2, 1e-4])
def test_every_number_is_as_close_as_it_says(tmp_path: Path, task: str, outputs: int, tolerance: float) -> None:
    project = made(tmp_path / "p", task, outputs)
    exact = run(project, "exact", full="exact")
    found = run(project, "certified", full="certified", tolerance=tolerance)
    assert "certified" not in exact
    assert found["certified"]["tolerance"] == tolerance
    assert found["certified"]["widest"] <= tolerance
    compared = [*zip(found["rows"], exact["rows"], strict=True), (found["full"], exact["full"])]
    for own, expected in compared:
        assert "half_widths" not in expected
        widths = own["half_widths"]
        fitted = own["method"] in ("norm", "constant")  # to certified variances of a sample: they move with them
        for name in ("w2", "w2_relative", "w2_total", "discrepancy", "retained"):
            if own[name] is not None and name in widths and not fitted:
                assert abs(own[name] - expected[name]) <= widths[name] + 1e-9, name
        assert own["method"] == "full" or {"w2", "w2_relative"} <= widths.keys()
        assert own["method"] in ("full", "norm", "constant") or {"discrepancy", "retained"} <= widths.keys()
        close = 2 * tolerance if not fitted or outputs == 1 else 0.1
        assert own["mean_std"] == pytest.approx(expected["mean_std"], rel=close)
        assert own["nll"] == pytest.approx(expected["nll"], rel=close, abs=close)


@pytest.mark.usefixtures("weak")
@TASKS
def test_a_sample_of_the_training_rows_says_how_sure_it_is(tmp_path: Path, task: str, outputs: int) -> None:
    project = made(tmp_path / "p", task, outputs)
    exact = run(project, "exact", full="exact")
    found = run(project, "certified", full="certified")
    for own, expected in [*zip(found["rows"][:2], exact["rows"][:2], strict=True)]:
        assert abs(own["retained"] - expected["retained"]) <= 1.5 * own["half_widths"]["retained"]  # 95 %, not all
        assert own["half_widths"]["retained"] < 0.5
    for own, expected in zip(found["rows"][2:], exact["rows"][2:], strict=True):  # fitted to the sample
        assert own["mean_std"] == pytest.approx(expected["mean_std"], rel=0.3)


@pytest.mark.parametrize("rescale", ["scale", "hybrid"])
def test_a_rescaling_is_fitted_to_certified_variances(tmp_path: Path, rescale: str) -> None:
    project = made(tmp_path / "p")
    exact = run(project, "exact", full="exact", rescale=rescale, method="gradient,sketch")
    found = run(project, "certified", full="certified", tolerance=1e-6, rescale=rescale, method="gradient,sketch")
    for own, expected in zip(found["rows"], exact["rows"], strict=True):
        for name in ("rescale", "remainder", "mean_std"):
            assert own[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), (own["method"], name)


def test_auto_is_exact_where_it_fits_and_certified_where_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, notes = made(tmp_path / "p", rows=3010), Notes()
    assert "certified" not in run(project, "small", memory="1GiB")
    found = run(project, "large", notes, memory="64MiB")  # the matrix of 3,000 rows takes 69 MiB
    assert found["certified"]["widest"] <= 0.01
    assert any("68.7 MiB" in note and "certified" in note for note in notes.said)
    assert found["rows"][0]["w2"] == pytest.approx(run(project, "small", memory="1GiB")["rows"][0]["w2"], rel=0.03)
    with pytest.raises(Exception, match="needs about"):
        run(project, "asked", memory="64MiB", full="exact")


def test_what_is_stored_is_used_again_for_the_same_tolerance(tmp_path: Path) -> None:
    project, notes = made(tmp_path / "p"), Notes()
    first = run(project, full="certified")
    again = run(project, "run", notes, full="certified")
    assert {"reusing certified-test-0.01", "reusing predictions-gradient-k5"} <= set(notes.said)
    assert again["rows"] == first["rows"]
    notes.said.clear()
    run(project, "run", notes, full="certified", tolerance=0.05)
    assert not any(note.startswith(("reusing certified", "reusing predictions")) for note in notes.said)
    notes.said.clear()
    exact = run(project, "run", notes, full="exact")
    assert exact["rows"] == run(project, "fresh", full="exact")["rows"]


@pytest.mark.usefixtures("weak")
def test_an_interrupted_run_goes_on_with_the_next_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, certify, notes, gradients = made(tmp_path / "p"), intervals._certify, Notes(), []
    whole = run(project, "whole", full="certified")
    monkeypatch.setattr(intervals, "rows_at_once", lambda *_: 4)
    monkeypatch.setattr(certifier, "rows_at_once", lambda *_: 4)
    expected = run(project, "parts", full="certified")

    def interrupted(system: Any, G: Any, *more: Any) -> Any:
        if len(gradients) == 2:
            raise KeyboardInterrupt
        gradients.append(G.shape[1])
        return certify(system, G, *more)

    monkeypatch.setattr(intervals, "_certify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(project, "again", full="certified")
    gradients.append(0)
    found = run(project, "again", notes, full="certified")
    assert "continuing certified-test-0.01 at row 8 of 10" in notes.said
    assert gradients[:2] == [4, 4]
    assert gradients[3] == 2  # then the sampled training rows
    assert found["rows"] == expected["rows"]
    for own, before in zip(found["rows"], whole["rows"], strict=True):
        assert own["w2"] == pytest.approx(before["w2"], abs=own["half_widths"]["w2"] + before["half_widths"]["w2"])


@pytest.mark.usefixtures("weak")
def test_a_batch_that_was_interrupted_goes_on_from_its_last_solutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, multiply, notes, steps = made(tmp_path / "p", rows=130), System.multiply, Notes(), [0]
    expected = run(project, "whole", full="certified", method="gradient", tolerance=1e-6)

    def counted(*arguments: Any) -> Any:
        steps[0] += 1
        if steps[0] == limit:
            raise KeyboardInterrupt
        return multiply(*arguments)

    limit = -1
    monkeypatch.setattr(System, "multiply", lambda own, X, dtype: counted(own, X, dtype))
    run(project, "counted", full="certified", method="gradient", tolerance=1e-6)
    whole, steps[0] = steps[0], 0
    assert whole > 2
    monkeypatch.setattr(certifier, "KEEP_SECONDS", 0.0)
    limit = 2
    with pytest.raises(KeyboardInterrupt):
        run(project, "again", full="certified", method="gradient", tolerance=1e-6)
    kept = load_file(project.folder / "again" / "solutions-test-1e-06.safetensors")["z"]
    assert float(kept.abs().max()) > 0
    steps[0] = limit  # past it
    found = run(project, "again", notes, full="certified", method="gradient", tolerance=1e-6)
    assert "continuing with solutions-test-1e-06" in notes.said
    assert steps[0] - limit <= whole
    assert not list((project.folder / "again").glob("solutions-*"))
    (own,), (before,) = found["rows"], expected["rows"]
    assert own["w2"] == pytest.approx(before["w2"], abs=own["half_widths"]["w2"] + before["half_widths"]["w2"])


@pytest.mark.usefixtures("weak")
def test_solutions_of_another_batch_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with another --memory, where a batch has fewer rows."""
    project, multiply, notes = made(tmp_path / "p", rows=130), System.multiply, Notes()
    expected = run(project, "whole", full="certified", method="gradient")

    def interrupted(own: System, X: Any, dtype: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(certifier, "KEEP_SECONDS", 0.0)
    monkeypatch.setattr(System, "multiply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(project, "again", full="certified", method="gradient")
    assert (project.folder / "again" / "solutions-test-0.01.safetensors").exists()
    monkeypatch.setattr(System, "multiply", multiply)
    monkeypatch.setattr(certifier, "KEEP_SECONDS", 60.0)
    monkeypatch.setattr(intervals, "rows_at_once", lambda *_: 4)
    monkeypatch.setattr(certifier, "rows_at_once", lambda *_: 4)
    found = run(project, "again", notes, full="certified", method="gradient")
    assert not any(note.startswith("continuing with") for note in notes.said)
    (own,), (before,) = found["rows"], expected["rows"]
    assert own["w2"] == pytest.approx(before["w2"], abs=own["half_widths"]["w2"] + before["half_widths"]["w2"])


@pytest.mark.usefixtures("weak")
def test_rows_that_miss_the_tolerance_are_warned_of_and_their_intervals_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, notes = made(tmp_path / "p"), Notes()
    exact = run(project, "exact", full="exact", method="gradient")
    monkeypatch.setattr(certifier, "MOST_STEPS", 4)
    warned: list[str] = []
    monkeypatch.setattr(notes, "warn", warned.append)
    found = run(project, "few", notes, full="certified", tolerance=1e-9, method="gradient")
    assert any("of 10 test rows" in text and "not ± 1e-07 %" in text for text in warned)
    (own,), (expected,) = found["rows"], exact["rows"]
    assert found["certified"]["widest"] > 1e-9
    assert abs(own["w2"] - expected["w2"]) <= own["half_widths"]["w2"]


def test_calibration_and_out_of_distribution_rows_see_certified_variances(tmp_path: Path) -> None:
    project = made(tmp_path / "p", "binary")
    data = {**project.spec["data"]}
    data["splits"] = {**data["splits"], "ood": {"rows": "0:6"}}
    project.use(data=data)
    options: dict[str, Any] = {"method": "gradient,full", "rescale": "calibrated"}
    exact, found = (run(project, kind, full=kind, **options) for kind in ("exact", "certified"))
    for own, expected in zip(found["rows"], exact["rows"], strict=True):
        for name in ("nll", "ece", "ood_auroc_std"):
            assert own[name] == pytest.approx(expected[name], rel=0.02, abs=0.02), name


def test_a_tolerance_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    project = made(tmp_path / "p")
    for tolerance in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="--tolerance"):
            run(project, full="certified", tolerance=tolerance)
    with pytest.raises(UserError, match="not for --full none"):
        run(project, full="none", tolerance=0.1)


@pytest.mark.usefixtures("weak")
def test_no_row_without_itself_is_an_error_that_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path / "p").use(posterior={"prior_precision": 1e-6, "noise_variance": 1e-4})
    monkeypatch.setattr(certifier, "MOST_STEPS", 1)
    with pytest.raises(NumericsError, match="no sampled training row"):
        run(project, full="certified", method="gradient,norm")
