"""Run folders that are damaged, belong to another run or to nobody: never other numbers, never a surprise."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.cli_tools import ENVIRONMENT, Project, Tool, call, contents, core, mlp, refused, save, whole
from safetensors.torch import load_file, save_file

Make = Callable[..., Project]
CHOICE = ("--method", "gradient", "--k", 5, "--json")
# Later artifacts make earlier ones unneeded: what to delete so that this kind is read.
READ_BY = {
    "jacobians-train": ("posterior-*", "predictions-*", "scores*", "indices-*"),
    "jacobians-test": ("predictions-*",),
    "scores": ("indices-*", "predictions-*"),
    "indices-gradient-k5": ("posterior-gradient*", "predictions-gradient*"),
    "posterior-gradient-k5": ("predictions-gradient*",),
    "posterior-full-k41": ("predictions-full*",),
    "predictions-gradient-k5": (),
    "predictions-full-k41": (),
}


@pytest.fixture(scope="module")
def done(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Path, dict]:
    """A project with a finished run folder, and its result."""
    folder = tmp_path_factory.mktemp("done")
    project = Project(folder / "project")
    result = tool("evaluate", *CHOICE, "--run-dir", folder / "r", cwd=project.folder).json()
    return project, folder / "r", result


def copy(done: tuple[Project, Path, dict], stem: str, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(done[1], target)
    for pattern in READ_BY[stem]:
        for path in target.glob(pattern):
            path.unlink()
    return target / f"{stem}.safetensors"


@pytest.mark.parametrize("stem", READ_BY)
def test_flipped_bytes(tool: Tool, done: tuple[Project, Path, dict], tmp_path: Path, stem: str) -> None:
    project, _, result = done
    size = (done[1] / f"{stem}.safetensors").stat().st_size
    header = 8 + int.from_bytes((done[1] / f"{stem}.safetensors").read_bytes()[:8], "little")
    spread = [0, 3, 7, 8, 9, 30, header - 1, header - 20, header, header + 5, size - 1]
    positions = [*spread, *(size * i // 10 for i in range(1, 10))]
    found = 0
    for i, position in enumerate(positions):
        path = copy(done, stem, tmp_path / "r")
        content = bytearray(path.read_bytes())
        content[position] ^= 1 << (i % 8)
        path.write_bytes(content)
        run = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder)
        if run.code == 0:
            assert core(run.json()) == core(result), f"byte {position} of {stem} changed the numbers"
        else:
            refused(run, path.name, "--recompute", "--run-dir")
            found += 1
    assert found >= len(positions) // 2, "the damage is looked for"
    again = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", "--recompute", cwd=project.folder)
    assert core(again.json()) == core(result), "--recompute mends it"
    whole(tmp_path / "r")


@pytest.mark.parametrize("stem", READ_BY)
def test_truncated_and_exchanged(tool: Tool, done: tuple[Project, Path, dict], tmp_path: Path, stem: str) -> None:
    project, folder, result = done
    for cut in (0, 5, 100, -1, -64):
        path = copy(done, stem, tmp_path / "r")
        content = path.read_bytes()
        path.write_bytes(content[:cut])
        run = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder)
        refused(run, path.name, "truncated", "--recompute")
        path.write_bytes(content + b"more")
        refused(tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder), path.name)
    other = "scores" if stem != "scores" else "indices-gradient-k5"
    path.write_bytes((folder / f"{other}.safetensors").read_bytes())
    run = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder)
    if stem.split("-")[0] != other.split("-")[0]:
        refused(run, path.name, f"holds {other.split('-')[0]}", f"expected {stem.split('-')[0]}")
    save_file(load_file(folder / f"{stem}.safetensors"), path)
    refused(tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder), "not written by sublaplace")
    path.unlink()
    path.mkdir()
    refused(tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder), path.name)
    path.rmdir()
    assert core(tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder).json()) == core(result)


def rewrite(path: Path, **changes: object) -> None:
    """Change metadata and put the right checksum over it: a forgery, or a file of a later version."""
    size = int.from_bytes(path.read_bytes()[:8], "little")
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + size])
    meta = json.loads(header["__metadata__"]["sublaplace"])
    meta.pop("checksum")
    meta.update(changes)
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    meta["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    dumped = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    header["__metadata__"]["sublaplace"] = dumped
    new = json.dumps(header, separators=(",", ":")).encode()
    new += b" " * (-len(new) % 8)
    path.write_bytes(len(new).to_bytes(8, "little") + new + content[8 + size :])


def test_another_schema_run_and_swapped_methods(tool: Tool, done: tuple[Project, Path, dict], tmp_path: Path) -> None:
    project, folder, result = done
    path = copy(done, "scores", tmp_path / "r")
    rewrite(path, schema=2)
    run = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder)
    refused(run, "scores.safetensors", "schema version is 2", "reads 1")
    path = copy(done, "scores", tmp_path / "r")
    rewrite(path, fingerprint="0" * 16)
    run = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder)
    refused(run, "scores.safetensors", "other weights, data or options")
    # the prediction of one sub-network under the name of another: its inputs say so
    shutil.rmtree(tmp_path / "r")
    both = ("evaluate", "--method", "gradient,greedy,last-k", "--k", "5", "--json", "--run-dir", tmp_path / "r")
    first = tool(*both, cwd=project.folder).json()
    for kind in ("predictions", "posterior", "indices"):
        source = tmp_path / "r" / f"{kind}-last-k-k5.safetensors"
        shutil.copy(source, tmp_path / "r" / f"{kind}-greedy-k5.safetensors")
        run = tool(*both, cwd=project.folder)
        if run.code == 0:
            assert core(run.json()) == core(first), f"{kind} of last-k was taken for that of greedy"
        else:
            refused(run, f"{kind}-greedy-k5.safetensors")
            shutil.rmtree(tmp_path / "r")
            assert tool(*both, cwd=project.folder).code == 0
    shutil.copy(tmp_path / "r" / "jacobians-test.safetensors", tmp_path / "r" / "jacobians-train.safetensors")
    for path in (tmp_path / "r").glob("p*"):
        path.unlink()
    refused(tool(*both, cwd=project.folder), "jacobians-train.safetensors")
    assert folder.exists()
    assert result


def test_the_folder_of_another_run(tool: Tool, make: Make, tmp_path: Path) -> None:
    project, folder = make(), tmp_path / "r"
    first = tool("evaluate", *CHOICE, "--run-dir", folder, cwd=project.folder).json()
    before = contents(folder)
    run = tool("evaluate", *CHOICE, "--run-dir", folder, "--dtype", "float64", cwd=project.folder)
    refused(run, "another run", "options.dtype", "float32", "float64", "--recompute")
    save(mlp([3, 8, 1], seed=3), project.folder / "model.safetensors")
    refused(tool("evaluate", *CHOICE, "--run-dir", folder, cwd=project.folder), "another run", "weights", "--run-dir")
    assert contents(folder) == before
    replaced = tool("evaluate", *CHOICE, "--run-dir", folder, "--recompute", cwd=project.folder).json()
    assert replaced["rows"] != first["rows"]
    fresh = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "fresh", cwd=project.folder).json()
    assert core(fresh) == core(replaced)
    assert {name for name in contents(folder) if name.endswith("s")} == {
        name for name in contents(tmp_path / "fresh") if name.endswith("s")
    }


def test_changed_inputs_are_never_stale(tool: Tool, project: Project) -> None:
    seen = []
    for change in ("nothing", "data", "weights", "prior", "split"):
        if change == "data":
            project.write_csv("data.csv", ["a", "b", "c", "y0"], [[*x, y[0] + 1] for x, y in zip(project.x, project.y)])  # noqa: B905
        if change == "weights":
            save(mlp([3, 8, 1], seed=3), project.folder / "model.safetensors")
        if change == "prior":
            project.use(posterior={"prior_precision": 2.0})
        if change == "split":
            project.spec["data"]["splits"]["train"]["rows"] = "0:20"
            project.save()
        run = tool("evaluate", *CHOICE, cwd=project.folder)
        assert "reusing" not in run.err
        seen.append(json.dumps(run.json()["rows"]))
    assert len(set(seen)) == len(seen)


def test_a_folder_with_other_files(tool: Tool, project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    (folder / ".film.mkv.part").write_text("half a download")
    (folder / "model.safetensors").write_bytes((project.folder / "model.safetensors").read_bytes())
    before = contents(folder)
    for force in ((), ("--recompute",)):
        run = tool("evaluate", *CHOICE, "--run-dir", folder, *force, cwd=project.folder)
        refused(run, "not a run folder", "thesis.txt", "--run-dir")
        assert contents(folder) == before, "not even a lock is left in a folder of somebody else"


def test_a_damaged_manifest(tool: Tool, done: tuple[Project, Path, dict], tmp_path: Path) -> None:
    project, _, result = done
    for text in ("", "{", "[]", "null", '{"weights": 3}'):
        copy(done, "scores", tmp_path / "r")
        (tmp_path / "r" / "run.json").write_text(text)
        run = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder)
        refused(run, "run.json" if text != '{"weights": 3}' else "another run", "--recompute")
        forced = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", "--recompute", cwd=project.folder)
        assert core(forced.json()) == core(result), "the message says that --recompute mends it"


@pytest.mark.parametrize("left", [".run.json.123.part", "..gitignore.123.part", ".gitignore"])
def test_a_folder_that_was_killed_at_birth(tool: Tool, done: tuple, tmp_path: Path, left: str) -> None:
    project, folder, result = done
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / ".lock").touch()
    (tmp_path / "r" / left).write_text("")
    run = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder)
    assert core(run.json()) == core(result)
    assert set(contents(tmp_path / "r")) == set(contents(folder)), "no litter"


def test_leftovers_of_a_killed_write(tool: Tool, done: tuple, tmp_path: Path) -> None:
    project, folder, result = done
    copy(done, "scores", tmp_path / "r")
    (tmp_path / "r" / ".scores.safetensors.123.part").write_bytes(b"half")
    (tmp_path / "r" / "jacobians-train.safetensors").rename(tmp_path / "r" / "jacobians-train.safetensors.part")
    (tmp_path / "r" / "jacobians-train.safetensors.part.json").write_text('{"identity": "another", "rows_done": 9}')
    run = tool("evaluate", *CHOICE, "--run-dir", tmp_path / "r", "--recompute", cwd=project.folder)
    assert core(run.json()) == core(result)
    assert set(contents(tmp_path / "r")) == set(contents(folder)), "no litter"


def test_below_a_file(tool: Tool, project: Project) -> None:
    run = tool("evaluate", *CHOICE, "--run-dir", project.folder / "data.csv" / "r", cwd=project.folder)
    refused(run, "could not write", "data.csv/r", "--run-dir")


def test_a_read_only_folder() -> None:
    place = Path(tempfile.mkdtemp())  # not below pytest's folder, which other users may not enter
    try:
        place.chmod(0o755)
        project = Project(place / "project")
        for path in project.folder.iterdir():
            path.chmod(0o444)
        project.folder.chmod(0o555)
        nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
        try:
            subprocess.run([sys.executable, "-c", "import torch"], check=True, env=ENVIRONMENT, cwd=place, **nobody)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("root may write anywhere, and no other user can run this Python")
        run = call("evaluate", *CHOICE, cwd=project.folder, env={"HOME": "/nonexistent"}, **nobody)
        refused(run, "could not write", ".sublaplace", "--run-dir")
        assert not (project.folder / ".sublaplace").exists()
        elsewhere = place / "elsewhere"
        elsewhere.mkdir()
        elsewhere.chmod(0o777)
        run = call("evaluate", *CHOICE, "--run-dir", elsewhere / "r", cwd=project.folder, **nobody)
        assert run.json()["n_params"] == 41
    finally:
        shutil.rmtree(place, ignore_errors=True)
