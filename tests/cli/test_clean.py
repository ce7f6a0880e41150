"""`sublaplace clean`: what it lists, what it removes, and all that it must leave alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cli.cli_tools import ENVIRONMENT, Project, Run, Tool, call, contents, refused, strict

from sublaplace_cli.cli.cleaning import parse_age
from sublaplace_cli.errors import RunError, UserError
from sublaplace_cli.files.artifacts.run_files import contents_of, remove_run
from sublaplace_cli.files.artifacts.run_folder import RunFolder

HOUR = 3600.0


@pytest.fixture
def used(tool: Tool, project: Project) -> Project:
    """A project with two run folders."""
    for more in ((), ("--dtype", "float64")):
        assert tool("evaluate", "--method", "gradient", "--k", "3,5", *more, cwd=project.folder).code == 0
    return project


def runs_of(project: Project) -> list[Path]:
    return sorted((project.folder / ".sublaplace").glob("*"))


def age(folder: Path, seconds: float) -> None:
    """As if it had not been used since."""
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - seconds,) * 2)


def cleaned(tool: Tool, project: Project, *words: str) -> tuple[Run, list[str]]:
    """A run of it, and the state of each run folder."""
    run = tool("clean", *words, cwd=project.folder)
    assert run.code == 0, run.err
    return run, run.out.splitlines()


def test_it_lists_and_then_removes_every_run(tool: Tool, used: Project) -> None:
    folders = runs_of(used)
    assert len(folders) == 2
    for folder in folders:
        age(folder, 2.1 * HOUR)
    before = contents(used.folder)
    _, listed = cleaned(tool, used, "--dry-run")
    assert contents(used.folder) == before
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
    for folder, line in zip(folders, listed, strict=False):
        assert line.split()[0] == folder.name
        assert "gradient k=3,5" in line
        assert line.endswith("would be removed")
        assert " 2 h ago " in line
    assert listed[-1].startswith(f"would remove 2 of 2 run folders in {used.folder / '.sublaplace'}: ")
    assert strict(tool("clean", "--dry-run", "--json", cwd=used.folder).out)["total"] == {"count": 2, "bytes": size}
    run, removed = cleaned(tool, used)
    assert [line.replace("would be removed", "removed") for line in listed[:2]] == removed[:2]
    assert removed[-1].startswith("removed 2 of 2")
    assert run.err == ""
    assert not (used.folder / ".sublaplace").exists()
    assert set(contents(used.folder)) == {name for name in before if ".sublaplace" not in name}
    assert tool("evaluate", "--k", 3, cwd=used.folder).code == 0, "everything can be computed again"


def test_only_what_was_not_used_for_long_is_removed(tool: Tool, used: Project) -> None:
    old, new = runs_of(used)
    age(old, 3 * HOUR)
    age(new, HOUR)
    assert cleaned(tool, used, "--older-than", "4h")[1][-1].startswith("removed 0 of 2")
    _, lines = cleaned(tool, used, "--older-than", "2h")
    assert lines[0].endswith("removed")
    assert " 3 h ago " in lines[0]
    assert lines[1].endswith("kept")
    assert runs_of(used) == [new]


def test_reusing_a_run_counts_as_using_it(tool: Tool, used: Project) -> None:
    for folder in runs_of(used):
        age(folder, 3 * HOUR)
    run = tool("evaluate", "--method", "gradient", "--k", "3,5", cwd=used.folder)
    assert "reusing predictions-gradient-k3" in run.err
    states = [
        own["state"] for own in json.loads(tool("clean", "--older-than", "2h", "--json", cwd=used.folder).out)["runs"]
    ]
    assert sorted(states) == ["kept", "removed"]


def test_a_run_in_progress_is_left_alone(tool: Tool, used: Project) -> None:
    busy, free = runs_of(used)
    identity = json.loads((busy / "run.json").read_text())
    before = contents(busy)
    folder = RunFolder.open(busy, identity, force=False, on_wait=pytest.fail)
    try:
        for words in (["--dry-run"], []):
            _, lines = cleaned(tool, used, *words)
            assert lines[0].endswith("in use")
            assert "1 of 2" in lines[-1]
        assert remove_run(busy) is None, "also where it was locked after it was looked at"
    finally:
        folder.close()
    assert contents(busy) == before
    assert not free.exists()


def test_a_run_that_waits_for_a_folder_that_is_removed_makes_it_anew(tmp_path: Path) -> None:
    path, identity = tmp_path / "run", {"weights": "a", "data": "b", "spec": {}}
    first = RunFolder.open(path, identity, force=False, on_wait=pytest.fail)
    waiting, opened = threading.Event(), []

    def second() -> None:
        opened.append(RunFolder.open(path, identity, force=False, on_wait=lambda _: waiting.set()))

    thread = threading.Thread(target=second)
    thread.start()
    assert waiting.wait(20)
    for name in ("run.json", ".gitignore", ".lock"):  # as `clean` does, which holds the lock
        (path / name).unlink()
    path.rmdir()
    first.close()
    thread.join(20)
    assert (path / "run.json").is_file()
    third = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import fcntl; fcntl.flock(open({str(path / '.lock')!r}), fcntl.LOCK_EX | fcntl.LOCK_NB)",
        ],
        capture_output=True,
    )
    assert b"BlockingIOError" in third.stderr, "it holds the lock that others see"
    opened[0].close()


def test_files_of_others_stay_and_are_named(tool: Tool, used: Project) -> None:
    folder, other = runs_of(used)
    outside = used.folder / "outside.safetensors"
    outside.write_text("precious")
    (folder / "notes.txt").write_text("mine")
    (folder / "jacobians-mine.safetensors").symlink_to(outside)
    (folder / "scores-more.safetensors").mkdir()
    _, lines = cleaned(tool, used)
    assert lines[0].endswith("but not jacobians-mine.safetensors, notes.txt, scores-more.safetensors: not ours")
    assert outside.read_text() == "precious"
    assert {path.name for path in folder.iterdir()} == {
        *("notes.txt", "jacobians-mine.safetensors", "scores-more.safetensors"),
        *("run.json", ".gitignore", ".lock"),
    }, "with the marks of a run folder, which can still be used"
    assert not other.exists()


def test_what_is_no_run_folder_stays(tool: Tool, used: Project, tmp_path: Path) -> None:
    first, second = runs_of(used)
    elsewhere = tmp_path / "elsewhere"
    first.rename(elsewhere)
    first.symlink_to(elsewhere)  # a link to a run folder
    renamed = second.with_name("0123456789abcdef")  # not the name of its identity
    second.rename(renamed)
    home = used.folder / ".sublaplace"
    (home / "thesis").mkdir()
    (home / "thesis" / "scores.safetensors").write_text("mine")
    (home / "todo.txt").write_text("mine")
    (home / "ffffffffffffffff").mkdir()
    (home / "ffffffffffffffff" / "run.json").write_text("{")
    before = contents(tmp_path)
    _, lines = cleaned(tool, used)
    assert contents(tmp_path) == before
    assert first.is_symlink()
    left = {line.split()[0] for line in lines if line.endswith("not a run folder: left alone")}
    assert left == {first.name, renamed.name, "thesis", "todo.txt", "ffffffffffffffff"}
    assert lines[-1].startswith("no run folders in ")


def test_a_linked_folder_of_runs_is_refused(tool: Tool, used: Project, tmp_path: Path) -> None:
    (used.folder / ".sublaplace").rename(tmp_path / "moved")
    (used.folder / ".sublaplace").symlink_to(tmp_path / "moved")
    before = contents(tmp_path / "moved")
    refused(tool("clean", cwd=used.folder), "is a link")
    refused(tool("clean", "--run-dir", ".sublaplace", cwd=used.folder), "is a link")
    assert contents(tmp_path / "moved") == before


def test_run_folders_elsewhere(tool: Tool, project: Project) -> None:
    for name in ("a", "b/c"):
        assert tool("jacobians", "--run-dir", name, cwd=project.folder).code == 0
    (project.folder / "b" / "notes.txt").write_text("mine")
    _, lines = cleaned(tool, project, "--run-dir", "b")
    assert [line.split()[0] for line in lines] == ["c", "notes.txt", "removed"]
    assert (project.folder / "b").is_dir()
    _, lines = cleaned(tool, project, "--run-dir", "a")
    assert lines[-1].startswith("removed 1 of 1")
    assert not (project.folder / "a").exists()
    refused(tool("clean", "--run-dir", "a", cwd=project.folder), "is not a folder")
    refused(tool("clean", "--run-dir", "b", "--spec", "sublaplace.yaml", cwd=project.folder), "--spec")


def test_which_spec(tool: Tool, used: Project, tmp_path: Path) -> None:
    below = used.folder / "deep" / "er"
    below.mkdir(parents=True)
    run = tool("clean", "--dry-run", cwd=below)
    assert run.out.splitlines()[-1].startswith("would remove 2 of 2")
    run = tool("clean", "--dry-run", "--spec", used.folder / "sublaplace.yaml", cwd=tmp_path)
    assert run.out.splitlines()[-1].startswith("would remove 2 of 2")
    (used.folder / "sublaplace.yaml").write_text("broken: [")
    assert cleaned(tool, used)[1][-1].startswith("removed 2 of 2"), "a broken spec is no obstacle"
    assert cleaned(tool, used)[1] == [f"no run folders in {used.folder / '.sublaplace'}"]
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(tool("clean", cwd=empty), "no sublaplace.yaml")
    refused(tool("clean", "--spec", "absent.yaml", cwd=empty), "absent.yaml", "no such file")


def test_an_error_is_one_message(tool: Tool, used: Project) -> None:
    refused(tool("clean", "--older-than", "7 days", cwd=used.folder), "--older-than '7 days'", "7d or 2w")
    assert len(runs_of(used)) == 2


def test_what_cannot_be_removed_ends_it_with_a_message(used: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, before = runs_of(used)[0], contents(used.folder)

    def refuse(*_args: object, **_more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(RunError, match=f"could not clean {folder}: Permission denied") as caught:
        remove_run(folder)
    assert caught.value.exit_code == 3
    assert contents(used.folder) == before


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("1.5w", 907_200)])
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7D", "7d2h", "1e3d", "٣d", "9999999d", "7 days"])
def test_other_ages_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a time"):
        parse_age(text)


def test_names_are_shown_as_text(tool: Tool, used: Project) -> None:
    (used.folder / ".sublaplace" / "\x1b[31mred\n").mkdir()
    run, lines = cleaned(tool, used, "--dry-run")
    assert "\x1b" not in run.out
    assert len(lines) == 4
    (runs_of(used)[1] / "\x1b[2Jgone").write_text("")
    assert "\x1b" not in cleaned(tool, used, "--dry-run")[0].out
    strict(tool("clean", "--dry-run", "--json", cwd=used.folder).out)


def test_it_does_not_load_torch(project: Project) -> None:
    script = (
        "import sys; from sublaplace_cli.cli.app import app; sys.argv = ['sublaplace', 'clean']\n"
        "try: app()\nexcept SystemExit: pass\nprint([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project.folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "7d" in call("clean", "--help", cwd=project.folder).out


def test_a_file_that_a_run_renames_meanwhile_ends_nothing(used: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = next((used.folder / ".sublaplace").iterdir())
    (folder / "scores.safetensors.part").write_text("unfinished")
    listed = os.scandir

    def then_renamed(path: Any) -> Any:
        entries = list(listed(path))
        (folder / "scores.safetensors.part").unlink()
        return iter(entries)

    monkeypatch.setattr(os, "scandir", then_renamed)
    found = contents_of(folder)
    assert "scores.safetensors" in found.artifacts
    assert "scores.safetensors.part" not in found.artifacts
