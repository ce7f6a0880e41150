"""Artifacts with absurd content and right checksums, and files that are no files: refused with their name."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.cli_tools import Project, Run, Tool, core, refused, start
from cli.test_damage import READ_BY
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.artifacts import layout
from sublaplace_cli.files.artifacts.artifact import open_artifact, write_artifact
from sublaplace_cli.files.artifacts.atomic import canonical_json, digest_of

CHOICE = ("--method", "gradient", "--k", 5, "--json")
NAN, INF = float("nan"), float("inf")
Done = tuple[Path, Path, dict]
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def done(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A project with standardised rows, its finished run folder, and its result."""
    folder = tmp_path_factory.mktemp("done")
    project = Project(folder / "project")
    project.spec["data"]["standardise"] = {"input": "from-train", "target": "from-train"}
    project.save()
    evaluated = tool("evaluate", *CHOICE, "--run-dir", folder / "r", cwd=project.folder)
    return project.folder, folder / "r", evaluated.json()


def metadata(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["sublaplace"])


def forge(path: Path, meta: dict[str, Any] | None = None, tensors: Tensors | None = None) -> Path:
    """Write the artifact again with other metadata or tensors, and with the checksums that belong to them."""
    known = metadata(path)
    own = {key: value for key, value in known.items() if key not in ("checksum", "schema", "tensors", "kind")}
    content = {**load_file(path), **(tensors or {})}
    changed = {key: value for key, value in {**own, **(meta or {})}.items() if value != "absent"}
    write_artifact(path, known["kind"], changed, content)
    return path


def evaluate(tool: Tool, done: Done, folder: Path, *more: Any) -> Run:
    return tool("evaluate", *CHOICE, "--run-dir", folder, *more, cwd=done[0])


def copied(done: Done, stem: str, target: Path) -> Path:
    """The artifact in a copy of the run folder, in which this kind is read."""
    shutil.copytree(done[1], target)
    for pattern in READ_BY[stem]:
        for path in target.glob(pattern):
            path.unlink()
    return target / f"{stem}.safetensors"


SUBNET = "posterior-gradient-k5"
FORGED_NUMBERS = [
    (SUBNET, "rescale", -1.0),
    (SUBNET, "rescale", "1"),
    (SUBNET, "remainder", -1e-9),
    (SUBNET, "remainder", None),
    (SUBNET, "noise_variance", -0.1),
    (SUBNET, "noise_variance", 0.0),
    (SUBNET, "noise_variance", None),
    (SUBNET, "noise_variance", True),
    (SUBNET, "form", "cubic"),
    (SUBNET, "form", "dual"),
    (SUBNET, "form", ["primal"]),
    (SUBNET, "n_train", 0),
    (SUBNET, "n_train", 2.5),
    (SUBNET, "n_train", 10**30),
    (SUBNET, "condition", -1.0),
    (SUBNET, "freedom", "many"),
    (SUBNET, "freedom", 10**400),
    (SUBNET, "prior_precision", 0),
    (SUBNET, "prior_precision", [["*", -1.0]]),
    (SUBNET, "prior_precision", {"*": 1.0}),
    (SUBNET, "scale_shapes", {"input": [4], "target": [1]}),
    (SUBNET, "scale_shapes", {"input": [3], "target": [-1]}),
    (SUBNET, "scale_shapes", {}),
    (SUBNET, "parameters", [["a"]]),
    (SUBNET, "spec", {"task": "poetry"}),
    (SUBNET, "spec", 5),
    (SUBNET, "spec", {"task": "regression", "outputs": "mean-and-log-variance", "model": {}, "data": {}}),
    (SUBNET, "spec", {"task": "binary", "outputs": "mean-and-log-variance", "model": {}, "data": {}}),
    (SUBNET, "spec", {"task": "regression", "outputs": 7, "model": {}, "data": {}}),
    (SUBNET, "serving", {"row_shapes": 3}),
    (SUBNET, "inputs", None),
    ("posterior-full-k41", "condition", "low"),
    ("posterior-full-k41", "noise_variance", -1.0),
    ("predictions-gradient-k5", "rescale", -2.0),
    ("predictions-gradient-k5", "freedom", []),
    ("jacobians-train", "stored", 1),
    ("jacobians-train", "inputs", []),
]


@pytest.mark.parametrize(("stem", "field", "value"), FORGED_NUMBERS)
def test_metadata_that_cannot_be_right(done: Done, tmp_path: Path, stem: str, field: str, value: Any) -> None:
    path = copied(done, stem, tmp_path / "r")
    kind = metadata(path)["kind"]
    assert open_artifact(path, kind)
    forge(path, {field: value})
    with pytest.raises(UserError, match=rf"{stem}.safetensors: .*({field}|factor|columns|input|target|outputs)"):
        open_artifact(path, kind)


def broken_diagonal(value: float) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        factor = tensors["factor"].clone()
        factor[2, 2] = value
        return {"factor": factor}

    return change


def first(name: str, value: float) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        changed = tensors[name].clone()
        changed.view(-1)[0] = value
        return {name: changed}

    return change


FORGED_TENSORS: list[tuple[str, str, Callable[[Tensors], Tensors]]] = [
    (SUBNET, "'factor' .*not finite", broken_diagonal(NAN)),
    (SUBNET, "'factor' .*not finite", broken_diagonal(INF)),
    (SUBNET, "'factor' .*diagonal", broken_diagonal(-1.0)),
    (SUBNET, "'factor' .*diagonal", broken_diagonal(0.0)),
    (SUBNET, "'factor' has shape", lambda tensors: {"factor": torch.eye(6).double()}),
    (SUBNET, "'factor' has shape", lambda tensors: {"factor": torch.ones(5, 6).double()}),
    (SUBNET, "'factor' has the type", lambda tensors: {"factor": torch.eye(5)}),
    (SUBNET, "'prior' .*not positive", first("prior", -1.0)),
    (SUBNET, "'prior' has shape", lambda tensors: {"prior": torch.ones(3).double()}),
    (SUBNET, "0..40", first("indices", 41)),
    (SUBNET, "0..40", first("indices", -1)),
    (SUBNET, "occurs twice", lambda tensors: {"indices": torch.zeros(5).long()}),
    (SUBNET, "'indices' has the type", lambda tensors: {"indices": tensors["indices"].double()}),
    ("posterior-full-k41", "'factor' .*diagonal", broken_diagonal(-1.0)),
    ("scores", "'score' .*negative", first("score", -1.0)),
    ("scores", "'score' .*not finite", first("score", NAN)),
    ("scores", "'diagonal' .*not positive", first("diagonal", 0.0)),
    ("scores", "'score' has shape", lambda tensors: {"score": torch.ones(40).double()}),
    ("indices-gradient-k5", "0..40", first("indices", 10**12)),
    ("indices-gradient-k5", "more entries", lambda _: {"indices": torch.arange(42), "scores": torch.ones(42).double()}),
    ("indices-gradient-k5", "'scores' has shape", lambda tensors: {"scores": torch.ones(4).double()}),
    ("indices-gradient-k5", "'scores' .*not finite", first("scores", INF)),
    ("predictions-gradient-k5", "'covariance' .*negative", first("covariance", -1.0)),
    ("predictions-gradient-k5", "'covariance' .*not finite", first("covariance", NAN)),
    ("jacobians-train", "'outputs' .*not finite", first("outputs", NAN)),
    ("jacobians-train", "'J/0.weight/.*' .*not finite", first("J/0.weight/deltas", NAN)),
]


@pytest.mark.parametrize(("stem", "problem", "change"), FORGED_TENSORS)
def test_tensors_that_cannot_be_right(
    tool: Tool, done: Done, tmp_path: Path, stem: str, problem: str, change: Callable[[Tensors], Tensors]
) -> None:
    path = copied(done, stem, tmp_path / "r")
    forge(path, tensors=change(load_file(path)))
    run = evaluate(tool, done, tmp_path / "r")
    refused(run, f"{stem}.safetensors")
    assert re.search(problem, run.err), run.err
    again = evaluate(tool, done, tmp_path / "r", "--recompute")
    assert core(again.json()) == core(done[2]), "--recompute replaces it"


@pytest.mark.parametrize("stem", READ_BY)
def test_metadata_with_a_missing_key(tool: Tool, done: Done, tmp_path: Path, stem: str) -> None:
    needed = []
    for key in metadata(done[1] / f"{stem}.safetensors"):
        path = Path(shutil.copy(done[1] / f"{stem}.safetensors", tmp_path))
        if key not in ("checksum", "schema", "tensors", "kind"):
            forge(path, {key: "absent"})
            with contextlib.suppress(UserError):
                open_artifact(path, metadata(path)["kind"])
                continue
            with pytest.raises(UserError, match=f"no '{key}'"):
                open_artifact(path, metadata(path)["kind"])
            needed.append(key)
    assert {"inputs", "fingerprint", "spec", "parameters"} <= set(needed)
    path = copied(done, stem, tmp_path / "r")
    forge(path, {"inputs": "absent"})
    refused(evaluate(tool, done, tmp_path / "r"), path.name, "no 'inputs'", "--recompute")


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any], text: str | None = None) -> None:
    """Change any part of the metadata, also those that describe the tensors."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    meta = json.loads(header["__metadata__"]["sublaplace"])
    meta.pop("checksum")
    meta = change(meta) or meta
    header["__metadata__"]["sublaplace"] = text or canonical_json({**meta, "checksum": digest_of(meta)})
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + content[8 + size :])


def entry(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda meta: meta["tensors"]["score"].update(changes)


WRONG_ENTRIES = {
    "no tensors": lambda meta: meta.pop("tensors") and None,
    "tensors that are a list": lambda meta: meta.update(tensors=[]),
    "a tensor that is a number": lambda meta: meta["tensors"].update(score=3),
    "a type that is unknown": entry(dtype="F16"),
    "a type that is a list": entry(dtype=["F64"]),
    "a shape without axes": entry(shape=[]),
    "a shape of text": entry(shape=["41"]),
    "a negative shape": entry(shape=[-41]),
    "pieces of no rows": entry(rows_per_piece=0),
    "pieces of minus one row": entry(rows_per_piece=-1),
    "half a row": entry(rows_per_piece=0.5),
    "no checksums": entry(sha256=[]),
    "a checksum of numbers": entry(sha256=[5]),
    "more checksums than pieces": entry(sha256=["0" * 64] * 3),
}


@pytest.mark.parametrize("change", WRONG_ENTRIES.values(), ids=WRONG_ENTRIES)
def test_descriptions_of_tensors_that_cannot_be_right(tool: Tool, done: Done, tmp_path: Path, change: Any) -> None:
    path = copied(done, "scores", tmp_path / "r")
    rewritten(path, change)
    refused(evaluate(tool, done, tmp_path / "r"), "scores.safetensors", "--recompute")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 500 + "]" * 500,
        "NaN",
        "[]",
        "1e999",
        '{"checksum": NaN}',
        '{"checksum": 1e999, "a": 1e999}',
    ],
)
def test_metadata_that_are_no_metadata(tool: Tool, done: Done, tmp_path: Path, text: str) -> None:
    path = copied(done, "scores", tmp_path / "r")
    rewritten(path, lambda meta: None, text)
    refused(evaluate(tool, done, tmp_path / "r"), "scores.safetensors", "--recompute")


def test_a_later_version_is_named_by_its_number(tool: Tool, done: Done, tmp_path: Path) -> None:
    path = copied(done, "scores", tmp_path / "r")
    rewritten(path, lambda meta: {"schema": 2, "kind": "scores", "everything": "else"})
    refused(evaluate(tool, done, tmp_path / "r"), "scores.safetensors", "schema version is 2", "reads 1")


FORGED_POSTERIORS: list[tuple[str, dict[str, Any], Callable[[Tensors], Tensors] | None]] = [
    ("rescale", {"rescale": -1.0}, None),
    ("noise_variance", {"noise_variance": -1.0}, None),
    ("form", {"form": "cubic"}, None),
    ("'method'", {"method": "absent"}, None),
    ("'spec'", {"spec": "absent"}, None),
    ("task", {"spec": {}}, None),
    ("n_train", {"n_train": True}, None),
    ("'factor'", {}, broken_diagonal(NAN)),
    ("'factor'", {}, broken_diagonal(-2.0)),
    ("'prior'", {}, first("prior", 0.0)),
    ("'input_std'", {}, first("input_std", 0.0)),
    ("'target_mean'", {}, first("target_mean", NAN)),
    ("occurs twice", {}, lambda tensors: {"indices": torch.ones(5).long()}),
]


@pytest.mark.parametrize(("word", "meta", "change"), FORGED_POSTERIORS)
def test_a_forged_posterior(tool: Tool, done: Done, tmp_path: Path, word: str, meta: dict, change: Any) -> None:
    path = Path(shutil.copy(done[1] / f"{SUBNET}.safetensors", tmp_path / "p.safetensors"))
    assert tool("evaluate", "--posterior", path, "--json", cwd=done[0]).code == 0
    forge(path, meta, None if change is None else change(load_file(path)))
    refused(tool("evaluate", "--posterior", path, "--json", cwd=done[0]), "p.safetensors", word)


@pytest.mark.parametrize("value", [1e-300, 1e300])
def test_a_posterior_whose_numbers_overflow(tool: Tool, done: Done, tmp_path: Path, value: float) -> None:
    for change in (broken_diagonal(value), first("prior", value), first("factor", value), first("input_std", value)):
        path = Path(shutil.copy(done[1] / f"{SUBNET}.safetensors", tmp_path / "p.safetensors"))
        forge(path, tensors=change(load_file(path)))
        run = tool("evaluate", "--posterior", path, "--json", cwd=done[0])
        assert run.code in (0, 2, 3), run.err
        assert "unexpected" not in run.err, run.err


def test_a_posterior_of_gigabytes_that_takes_no_disk_space(tool: Tool, done: Done, tmp_path: Path) -> None:
    path, n_rows = tmp_path / "p.safetensors", 20_000
    source = done[1] / f"{SUBNET}.safetensors"
    meta = {key: value for key, value in metadata(source).items() if key not in ("checksum", "tensors")}
    meta["spec"]["data"]["standardise"] = {"input": "none", "target": "none"}  # nothing of it is read before
    plans = layout.whole_plans({name: t for name, t in load_file(source).items() if "_" not in name})
    plans["factor"] = layout.TensorPlan(torch.float64, (n_rows, n_rows), n_rows)
    plans["columns"] = layout.TensorPlan(torch.float64, (5, n_rows), 5)
    plans = dict(sorted(plans.items()))
    digests = {name: ["0" * 64] for name in plans}
    header, _ = layout.header_of(
        "posterior", {**meta, "form": "dual", "n_train": n_rows, "scale_shapes": {}}, plans, digests
    )
    path.write_bytes(header)
    os.truncate(path, layout.offsets_of(len(header), plans)[1])
    run = tool("evaluate", "--posterior", path, "--memory", "64MiB", cwd=done[0])
    refused(run, "p.safetensors", "3.0 GiB", "64.0 MiB", "--memory", code=3)
    assert run.peak < 2**30


WRONG_INDICES: dict[str, tuple[str, bytes, str]] = {
    "a pickle": ("i.npy", b"\x80\x04N.", "i.npy"),
    "an open header": ("i.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((  \n", "i.npy"),
    "a header of terabytes": (
        "i.npy",
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(118),
        "i.npy",
    ),
    "a compressed text": ("i.gz", b"\x1f\x8b\x08\x00garbage", "i.gz"),
    "zeros": ("i.txt", b"\x00" * 1000, "i.txt"),
    "a large file": ("i.txt", b"1\n" * 2**20, "larger than 1.0 MiB"),
    "a number beyond 64 bits": ("i.txt", b"99999999999999999999999\n", "i.txt"),
    "no number": ("i.txt", b"", "i.txt"),
}


@pytest.mark.parametrize("case", WRONG_INDICES)
def test_files_of_indices(tool: Tool, done: Done, tmp_path: Path, case: str) -> None:
    name, content, word = WRONG_INDICES[case]
    (tmp_path / name).write_bytes(content)
    run = tool("fit", "--indices", tmp_path / name, "--run-dir", tmp_path / "r", cwd=done[0])
    refused(run, "--indices" if case != "no number" else "it chose no parameter", word)


def test_forged_indices_cannot_take_the_name_of_a_reference(tool: Tool, done: Done, tmp_path: Path) -> None:
    path = Path(shutil.copy(done[1] / "indices-gradient-k5.safetensors", tmp_path / "i.safetensors"))
    command = ("fit", "--indices", path, "--run-dir", tmp_path / "r", "--json")
    forge(path, {"method": "x" * 5000})
    assert tool(*command, cwd=done[0]).code == 0, "a long name fits into a file name"
    for method in ("full", "map", "", 5, None):
        forge(path, {"method": method})
        refused(tool(*command, cwd=done[0]), "i.safetensors", "method")


def bounded(*args: Any, cwd: Path) -> Run:
    """A call that must not wait."""
    process = start(*args, cwd=cwd, quick=True)
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Run(process.returncode, out.decode(), err.decode())


def no_file(path: Path, kind: str) -> Path:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("option", ["--baseline", "--posterior", "--indices", "--indices "])
def test_options_that_name_no_regular_file(done: Done, tmp_path: Path, option: str, kind: str) -> None:
    suffix = {"--baseline": "json", "--indices ": "txt"}.get(option, "safetensors")
    path = no_file(tmp_path / f"p.{suffix}", kind)
    words = ("fit",) if "--indices" in option else ("evaluate", *(CHOICE if option == "--baseline" else ()))
    run = bounded(*words, option.strip(), path, "--run-dir", tmp_path / "r", cwd=done[0])
    refused(run, path.name, "not a regular file")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["run.json", ".lock", "scores.safetensors", "jacobians-train.safetensors"])
def test_run_folders_with_entries_that_are_no_files(done: Done, tmp_path: Path, name: str, kind: str) -> None:
    copied(done, "jacobians-train", tmp_path / "r")
    if name == "scores.safetensors":
        shutil.copy(done[1] / name, tmp_path / "r")
    no_file(tmp_path / "r" / name, kind)
    run = bounded("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=done[0])
    refused(run, "could not write" if (name, kind) == (".lock", "folder") else name)


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_unfinished_rows_that_are_no_file(done: Done, tmp_path: Path, kind: str) -> None:
    mine = tmp_path / "thesis.txt"
    mine.write_text("years of work")
    for suffix in (".part", ".part.json"):
        path = copied(done, "jacobians-train", tmp_path / f"r{suffix}")
        path.unlink()
        part = path.with_name(path.name + suffix)
        part.symlink_to(mine) if kind == "link" else no_file(part, kind)
        run = bounded("evaluate", *CHOICE, "--run-dir", path.parent, cwd=done[0])
        assert core(run.json()) == core(done[2])
    assert mine.read_text() == "years of work", "a link in the run folder is not followed"


def test_a_lock_that_is_a_link(done: Done, tmp_path: Path) -> None:
    copied(done, "scores", tmp_path / "r")
    (tmp_path / "r" / ".lock").unlink()
    (tmp_path / "r" / ".lock").symlink_to(tmp_path / "new")
    refused(bounded("evaluate", *CHOICE, "--run-dir", tmp_path / "r", cwd=done[0]), ".lock: it is a link")
    assert not (tmp_path / "new").exists()


def test_manifests_that_are_deep_or_large(tool: Tool, done: Done, tmp_path: Path) -> None:
    for text in ("[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "[]" + " " * 2**26, '{"a": NaN}', "\udcff"):
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
        path = copied(done, "scores", tmp_path / "r")
        (path.parent / "run.json").write_bytes(text.encode(errors="surrogateescape"))
        refused(evaluate(tool, done, path.parent), "run.json", "--recompute")


def test_folders_in_a_run_folder_that_is_replaced(tool: Tool, done: Done, tmp_path: Path) -> None:
    for name in ("posterior-a.safetensors", ".run.json.12.part"):
        copied(done, "scores", tmp_path / name)
        (tmp_path / name / name).mkdir()
        run = evaluate(tool, done, tmp_path / name, "--recompute")
        refused(run, "could not write")


DEEP: Any = 5
for _ in range(900):
    DEEP = [DEEP]
ODD_BASELINES = {
    "checkpoints": [[], None, {}, 5, [5], [{"bracket": {"a": [1e300]}}], [{}] * 1000, "abc", [{"bracket": DEEP}]],
    "mean": [None, [], {}, [[]], [{}], [{"method": ["gradient"], "k": 5}], [{"method": "gradient", "k": {"a": 1}}]],
    "rows": [None, {}, [{"method": None}], [{"method": "gradient", "ks": 5}], [{"ks": [[1], {}]}], [{"k": DEEP}]],
    "provenance": [None, [], {"metrics": {"a": 1}}, {"rows_sha256": 5}, {"metrics": DEEP}],
    "bracket": [5, [[]], {"rows": NAN}, DEEP],
    "schema": [None, 2, "1", [1], True],
}


@pytest.mark.parametrize("key", ODD_BASELINES)
def test_odd_baselines(tool: Tool, done: Done, tmp_path: Path, key: str) -> None:
    """Refused, or not compared; never a surprise."""
    path = tmp_path / "b.json"
    for value in ODD_BASELINES[key]:
        path.write_text(json.dumps({**done[2], key: value}))
        run = evaluate(tool, done, done[1], "--baseline", path, "--max-regression", "w2=0.1")
        assert run.code in (0, 1, 2, 4), f"{value}: {run.err}"
        assert "unexpected" not in run.err, f"{value}: {run.err}"
        if run.code == 2:
            refused(run, "--baseline", "b.json")


def test_a_default_run_folder_that_is_a_link(tool: Tool, project: Project, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (project.folder / ".sublaplace").symlink_to(tmp_path / "elsewhere")
    refused(tool("evaluate", *CHOICE, cwd=project.folder), ".sublaplace is a link to another folder", "--run-dir")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_force_deletes_only_files_of_its_own(tool: Tool, project: Project) -> None:
    folder = project.folder / "r"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "precious.safetensors").write_text("years of work")
    (folder / "scores.safetensors").write_text("stale")
    assert tool("evaluate", *CHOICE, "--run-dir", "r", "--recompute", cwd=project.folder).code == 0
    assert (folder / "precious.safetensors").read_text() == "years of work"


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK", "RANK"])
@pytest.mark.parametrize("value", ["9" * 23, "abc", "-1", "²"])
def test_ranks_that_are_no_numbers(tool: Tool, project: Project, name: str, value: str) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", name: value}
    refused(tool("evaluate", *CHOICE, cwd=project.folder, env=env), f"{name} is ", "expected a number")
