"""What a run is expected to take: which work is left, at which rates, and when it is said."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from cli.cli_tools import Project
from commands.in_process import Notes, result_of

from sublaplace_cli.cli.console import Console
from sublaplace_cli.cli.settings import Settings
from sublaplace_cli.commands import plan as planning
from sublaplace_cli.commands.planning import rates
from sublaplace_cli.commands.planning.rates import Rates
from sublaplace_cli.commands.planning.timing import TimeEstimate, duration
from sublaplace_cli.commands.planning.work import Work


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def planned(project: Project, command: str = "evaluate", **options: Any) -> dict[str, Any]:
    settings = Settings(spec=project.folder / "sublaplace.yaml", dry_run=True, **options)
    return result_of(command, settings, Notes())


def done(project: Project, command: str = "evaluate", **options: Any) -> list[str]:
    notes = Notes()
    result_of(command, Settings(spec=project.folder / "sublaplace.yaml", **options), notes)
    return notes.said


def test_a_dry_run_says_how_long_each_step_takes(project: Project) -> None:
    found = planned(project, k="5")
    steps = found["seconds_by_step"]
    assert {"jacobians", "scores", "fit", "predict", "full"} <= set(steps)
    assert all(seconds > 0 for seconds in steps.values())
    assert found["seconds_estimate"] >= sum(steps.values()) * 0.99
    assert found["estimate"].startswith("about ")
    assert "22 train rows in passes" in found["estimate"]


def test_what_is_stored_costs_nothing(project: Project) -> None:
    before = planned(project, k="5")["seconds_by_step"]
    done(project, "jacobians")
    assert set(before) - set(planned(project, k="5")["seconds_by_step"]) == {"jacobians", "scores"}
    done(project, k="5")
    assert planned(project, k="5")["seconds_by_step"] == {}
    assert set(planned(project, k="6")["seconds_by_step"]) == {"fit", "predict"}
    again = planned(project, k="5", recompute=True)
    assert set(again["seconds_by_step"]) == set(before)
    assert (again["reused"], set(again["files"])) == ([], set(planned(project, k="5")["reused"]))


@pytest.mark.parametrize("options", [{"method": "neural-linear"}, {"k": "auto"}, {"method": "greedy", "k": "3,5"}])
def test_a_k_that_is_found_is_known_afterwards(project: Project, options: dict[str, str]) -> None:
    assert planned(project, **options)["seconds_by_step"]
    done(project, **options)
    assert planned(project, **options)["seconds_by_step"] == {}


def test_code_of_the_user_is_not_run_for_an_estimate(project: Project) -> None:
    (project.folder / "mine.py").write_text("def choose(problem, k):\n    raise SystemError\n")
    found = planned(project, method="mine:choose", k="5", allow_code=("mine",))
    assert "fit" in found["seconds_by_step"]


def test_each_option_has_its_work(project: Project) -> None:
    plain = set(planned(project, k="5")["seconds_by_step"])
    assert "full" not in planned(project, k="5", full="none")["seconds_by_step"]
    assert "select" not in plain
    for method in ("greedy", "variance"):
        assert "select" in planned(project, k="5", method=method)["seconds_by_step"]
    assert set(planned(project, "jacobians")["seconds_by_step"]) == {"jacobians", "scores"}
    assert set(planned(project, "select", k="5")["seconds_by_step"]) == {"jacobians", "scores"}
    assert set(planned(project, "fit", k="5")["seconds_by_step"]) == {"jacobians", "scores", "fit"}
    assert "rescale" in planned(project, "fit", k="5", rescale="scale")["seconds_by_step"]
    for prior in ("marglik", {"tune": "nll"}):
        project.use(posterior={"prior_precision": prior})
        assert "tune" in planned(project, k="5")["seconds_by_step"]


def test_measuring_takes_less_than_a_tenth_of_a_second(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = []

    def timed(*args: Any) -> Rates:
        started = time.process_time()
        found = rates.measured_rates(*args)
        spent.append(time.process_time() - started)
        return found

    monkeypatch.setattr("sublaplace_cli.commands.planning.timing.measured_rates", timed)
    for _ in range(5):
        planned(project, k="5")
    assert min(spent) < 0.1


def test_a_long_run_says_so_first_and_a_short_one_says_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not [line for line in done(project, k="5") if line.startswith("about")]
    monkeypatch.setattr(planning, "LONG", 0.0)
    said = done(project, k="5", recompute=True)
    assert said[0].startswith("about ")
    assert " and " in said[0]
    assert "rows in passes" in said[0]
    assert len([line for line in said if line.startswith("about")]) == 1


@pytest.mark.parametrize("quiet", [False, True])
def test_it_is_said_on_stderr_and_not_where_notes_are_not_wanted(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    monkeypatch.setattr(planning, "LONG", 0.0)
    result_of("evaluate", Settings(spec=project.folder / "sublaplace.yaml", k="5"), Console(quiet=quiet))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("about ") != quiet


def test_the_largest_pieces_are_named_and_equal_ones_added_up() -> None:
    pieces = [(Work("full", "a factor"), 60.0), (Work("full", "a factor"), 60.0), (Work("scores", "scores"), 1.0)]
    estimate = TimeEstimate(pieces)
    assert estimate.by_step == {"full": 120.0, "scores": 1.0}
    assert estimate.text(3 * 2**29) == "about 2 min and 1.5 GiB: a factor"
    assert TimeEstimate([]).text(2**20, spent=1.2) == "about 1 s and 1.0 MiB"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.32, "0.3 s"), (4.4, "4 s"), (41.2, "41 s"), (200, "3 min"), (9000, "2.5 h")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rates_are_multiplied_with_the_work() -> None:
    found = Rates(multiplication=1.0, element=10.0, byte=100.0, row={"train": 1000.0})
    assert found.seconds(Work("a", "b", products=1, elements=2, rows=3, split="train", written=4)) == 3421
