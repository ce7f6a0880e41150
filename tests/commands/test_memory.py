"""Out of memory: passes of half as many rows, then half the memory; the numbers stay, and it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli.cli_tools import Project, mlp, save
from commands.in_process import Notes, result_of

from sublaplace_cli.cli.advice import hint_of
from sublaplace_cli.cli.settings import Settings
from sublaplace_cli.commands import evaluate
from sublaplace_cli.commands.plan import Estimate
from sublaplace_cli.core.jacobian.capture import Capture, Captured
from sublaplace_cli.core.network.forward import Inputs, row_count
from sublaplace_cli.errors import SublaplaceError
from sublaplace_cli.run.full import full_of_run


def run(project: Project, notes: Notes, name: str, **options: str) -> dict:
    spec = project.folder / "sublaplace.yaml"
    settings = Settings(spec=spec, dtype="float64", run_dir=project.folder / name, **{"k": "5", **options})
    return result_of("evaluate", settings, notes)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "p", rows=140)
    return made.use(data={**made.spec["data"], "splits": {"train": {"rows": "0:120"}, "test": {"rows": "120:"}}})


def with_room_for(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Passes over more than `most` rows fail; the rows of all others are counted."""
    whole, sizes = Capture.__call__, []

    def limited(self: Capture, inputs: Inputs, **more: Any) -> Captured:
        if row_count(inputs) > most:
            raise torch.OutOfMemoryError("injected")
        sizes.append(row_count(inputs))
        return whole(self, inputs, **more)

    monkeypatch.setattr(Capture, "__call__", limited)
    monkeypatch.setattr(Estimate, "expectation", lambda self: None)  # it makes passes of its own
    return sizes


@pytest.mark.parametrize("options", [{}, {"max_artifact": "1kB", "memory": "150kB"}], ids=["stored", "computed again"])
def test_passes_are_halved_until_they_fit(
    project: Project, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    expected = run(project, Notes(), "whole", **options)
    monkeypatch.setattr("sublaplace_cli.run.open_run.prepare_capture", prepared_with_room(monkeypatch))
    sizes, notes = with_room_for(monkeypatch, 3), Notes()
    found = run(project, notes, "halved", **options)
    said = [note for note in notes.said if "out of memory" in note]
    assert said == [
        "out of memory on cpu: continuing with passes of 16 rows instead of 32",
        "out of memory on cpu: continuing with passes of 8 rows instead of 16",
        "out of memory on cpu: continuing with passes of 4 rows instead of 8",
        "out of memory on cpu: continuing with passes of 2 rows instead of 4",
    ]
    assert max(sizes) == 2
    for a, b in zip(found["rows"], expected["rows"], strict=True):
        assert a["w2"] == pytest.approx(b["w2"], rel=1e-9)


def test_one_row_that_does_not_fit_is_an_error(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sublaplace_cli.run.open_run.prepare_capture", prepared_with_room(monkeypatch))
    with_room_for(monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError):
        run(project, Notes(), "none")


def prepared_with_room(monkeypatch: pytest.MonkeyPatch):
    """The checks before the work have room."""
    from sublaplace_cli.core.jacobian import capture

    real = capture.prepare_capture

    def prepare(*args):
        with monkeypatch.context() as patch:
            patch.setattr(Capture, "__call__", WHOLE)
            return real(*args)

    return prepare


WHOLE = Capture.__call__


def test_a_step_goes_on_with_half_the_memory(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(project, Notes(), "whole", memory="64MiB")
    whole, failures = full_of_run.fit_full, [torch.OutOfMemoryError("injected"), MemoryError()]

    def fit(precision, *next_rows):
        if failures:
            raise failures.pop()
        return whole(precision, *next_rows)

    monkeypatch.setattr(full_of_run, "fit_full", fit)
    notes = Notes()
    found = run(project, notes, "again", memory="64MiB")
    assert [note for note in notes.said if "out of memory" in note] == [
        "out of memory on cpu: continuing within 32.0 MiB; finished parts are reused",
        "out of memory on cpu: continuing within 16.0 MiB; finished parts are reused",
    ]
    assert notes.said.count("reusing jacobians-test") == 2
    assert found["rows"] == expected["rows"]


def test_it_gives_up_in_the_end(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args):
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(evaluate, "full_prediction", fail)
    with pytest.raises(torch.OutOfMemoryError):
        run(project, Notes(), "never", memory="1MiB")


def test_single_precision_is_accepted_where_it_is_right_and_refused_where_it_is_not(project: Project) -> None:
    expected = run(project, Notes(), "double")
    found = run(project, Notes(), "single", gram_dtype="float32")
    assert found["full"]["mean_std"] != expected["full"]["mean_std"]
    assert found["full"]["mean_std"] == pytest.approx(expected["full"]["mean_std"], rel=1e-4)
    assert found["provenance"]["fingerprint"] != expected["provenance"]["fingerprint"]
    for number, prior in enumerate((1e-2, 1e-4)):  # variances that are off; no factor at all
        project.use(posterior={"prior_precision": prior, "noise_variance": prior})
        with pytest.raises(SublaplaceError, match="float32 products is not accurate enough here") as refused:
            run(project, Notes(), f"refused-{number}", gram_dtype="float32")
        assert refused.value.exit_code == 3
        assert "use --gram-dtype float64" in str(hint_of(refused.value))
        run(project, Notes(), f"accepted-{number}")


def test_split_products_are_those_of_float64_and_remember_their_digits(project: Project) -> None:
    expected, notes = run(project, Notes(), "double"), Notes()
    found = run(project, notes, "split", gram_dtype="split")
    assert found["full"]["mean_std"] != expected["full"]["mean_std"]
    assert found["full"]["mean_std"] == pytest.approx(expected["full"]["mean_std"], rel=1e-6)
    assert found["provenance"]["fingerprint"] != expected["provenance"]["fingerprint"]
    assert not [note for note in notes.said if "digits" in note]
    project.use(posterior={"prior_precision": 1e-4, "noise_variance": 1e-4})  # too much for float32
    (said,) = [note for note in finer_of(project).said if "digits" in note]
    assert said == "the Gram matrix is of products of 5 digits: fewer are too few here"
    exact = run(project, Notes(), "exact")
    again = run(project, Notes(), "finer", gram_dtype="split", method="last-k")  # of the stored factor
    assert again["full"]["mean_std"] == pytest.approx(exact["full"]["mean_std"], rel=1e-6)


def finer_of(project: Project) -> Notes:
    notes = Notes()
    run(project, notes, "finer", gram_dtype="split")
    return notes


@pytest.mark.parametrize("gram_dtype", ["float32", "split"])
def test_all_parameters_are_no_broken_theorem(project: Project, gram_dtype: str) -> None:
    """A full posterior that is off by a little more than a sub-network is smaller than it."""
    found = run(project, Notes(), "everything", k="41", gram_dtype=gram_dtype)
    assert found["rows"][0]["retained"] == pytest.approx(1, rel=1e-6)


def test_greedy_says_when_its_columns_do_not_fit_and_chooses_the_same(project: Project) -> None:
    save(mlp([3, 200, 1]), project.folder / "model.safetensors")
    build = {"arch": "mlp", "args": {"in": 3, "hidden": [200], "out": 1, "act": "tanh"}}
    project.use(model={**project.spec["model"], "build": build})
    ample, cramped, pooled = Notes(), Notes(), Notes()
    expected = run(project, ample, "ample", method="greedy")
    found = run(project, cramped, "cramped", method="greedy", memory="1200kB")
    run(project, pooled, "pooled", method="greedy", memory="1200kB", pool="2k")
    said = [[note for note in notes.said if "candidates" in note] for notes in (ample, cramped, pooled)]
    assert [len(notes) for notes in said] == [0, 1, 0]
    assert "columns of 512 of 1001 candidates" in said[1][0]
    assert found["rows"][0]["w2"] == pytest.approx(expected["rows"][0]["w2"], rel=1e-9)
