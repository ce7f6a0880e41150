"""How it must fail: wrong usage, specs, checkpoints and data; each with one message, the right code, no trace."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.cli_tools import Project, Tool, contents, mlp, refused, save
from safetensors.torch import load_file, save_file

Make = Callable[..., Project]

USAGE = [
    (["--k", "0"], ["--k '0'", "positive integer", "for example"]),
    (["--k", "-3"], ["-3", "positive integer"]),
    (["--k", "ten"], ["'ten'", "positive integer"]),
    (["--k", "1.5"], ["'1.5'", "positive integer"]),
    (["--k", ""], ["--k", "positive integer"]),
    (["--k", "5,,6"], ["--k", "positive integer"]),
    (["--k", "٣"], ["--k", "positive integer"]),
    (["--k", "9" * 5000], ["--k"]),
    (["--method", "neural-linear", "--k", "5"], ["neural-linear takes no k", "leave --k out"]),
    (["--method", "map,full", "--k", "5"], ["map, full takes no k"]),
    (["--method", "gradeint"], ["unknown method 'gradeint'", "did you mean 'gradient'?"]),
    (["--method", "Gradient"], ["unknown method", "gradient"]),
    (["--method", ""], ["--method", "gradient"]),
    (["--method", "gradient,"], ["empty name"]),
    (["--method", "names:"], ["needs a pattern", "names:layer3.*"]),
    (["--method", "../x:y"], ["unknown method"]),
    (["--score", "weird"], ["--score", "'weird'", "unweighted"]),
    (["--score", ""], ["--score", "weighted"]),
    (["--reference", "validation"], ["--reference", "train"]),
    (["--dtype", "float16"], ["--dtype", "float32"]),
    (["--full", "maybe"], ["--full", "exact"]),
    (["--format", "xml"], ["--format", "'xml'", "json"]),
    (["--format", ""], ["--format"]),
    (["--json", "--format", "csv"], ["--json", "--format csv", "contradict"]),
    (["--pool", "some"], ["--pool", "2k"]),
    (["--pool", "0"], ["--pool"]),
    (["--pool", "²"], ["--pool"]),
    (["--pool", ""], ["--pool"]),
    (["--memory", "lots"], ["--memory", "8GiB"]),
    (["--memory", "0"], ["--memory"]),
    (["--memory", "0.1"], ["--memory"]),
    (["--max-artifact", "5 parsecs"], ["--max-artifact", "500MB"]),
    (["-o", "result.xyz"], ["result.xyz", "suffix", ".json"]),
    (["-o", "no/such/folder/r.json"], ["no folder", "no/such/folder"]),
    (["--predictions", "p.xlsx"], ["p.xlsx", ".jsonl"]),
    (["--predictions", "no/such/p.csv"], ["no folder"]),
    (["-o", "same.csv", "--predictions", "same.csv"], ["same.csv"]),
    (["--device", "gpu"], ["--device gpu", "cuda:N"]),
    (["--device", ""], ["--device"]),
    (["--device", "mps"], ["--device mps"]),
    (["--seed", "x"], ["--seed", "integer"]),
    (["--method", "random", "--k", "3", "--seed", "9" * 30], ["--seed"]),
    (["--nonsense"], ["--nonsense"]),
    (["--k"], ["--k"]),
    (["--k", "42"], ["--k 42", "41 trainable parameters", "between 1 and 41"]),
    (["--k", "3,42"], ["--k 42", "41"]),
    (["--k", "5", "--method", "greedy", "--pool", "3"], ["--pool", "3"]),
    (["--method", "names:nothing.*"], ["nothing.*", "0.weight"]),
    (["--method", "mypkg.sub:pick", "--k", "3"], ["mypkg", "--allow-code mypkg"]),
    (["--checkpoint", ""], ["folder", "expected weights"]),
    (["--checkpoint", "absent.pt"], ["absent.pt", "no such file"]),
    (["--checkpoint", "model.safetensor"], ["model.safetensor", "did you mean model.safetensors"]),
    (["--spec", ""], ["--spec"]),
    (["--spec", "absent.yaml"], ["absent.yaml"]),
    (["--spec", "."], ["--spec FILE"]),
    (["--run-dir", ""], ["--run-dir"]),
    (["--run-dir", "model.safetensors"], ["model.safetensors", "--run-dir"]),
    (["--run-dir", "model.safetensors/below"], ["model.safetensors/below", "--run-dir"]),
    (["--memory", "1B"], ["--memory"]),
]


@pytest.mark.parametrize(("options", "words"), USAGE, ids=lambda value: " ".join(value)[:40] if value else None)
def test_wrong_usage(tool: Tool, project: Project, options: list[str], words: list[str]) -> None:
    before = contents(project.folder)
    refused(tool("evaluate", *options, cwd=project.folder), *words)
    assert contents(project.folder) == before, "what can be known early fails before any computing"


def test_one_method_and_one_k(tool: Tool, project: Project) -> None:
    refused(tool("select", "--method", "gradient,greedy", "--k", 3, cwd=project.folder), "one method", "evaluate")
    refused(tool("fit", "--k", "3,4", cwd=project.folder), "one k")
    refused(tool("select", "--method", "map", cwd=project.folder), "map", "evaluate")
    refused(tool("fit", "--method", "diagonal", cwd=project.folder), "diagonal", "evaluate")
    refused(tool("select", "--method", "full", cwd=project.folder), "full")
    refused(tool("select", "--predictions", "x.csv", cwd=project.folder), "--predictions")
    refused(tool("evaluat", cwd=project.folder), "evaluat")
    assert not (project.folder / ".sublaplace").exists()


def test_indices_that_cannot_be(tool: Tool, project: Project, tmp_path: Path) -> None:
    def fit(name: str, *words: str) -> None:
        run_dir = tmp_path / "r"
        refused(tool("fit", "--indices", tmp_path / name, "--run-dir", run_dir, cwd=project.folder), *words)
        assert not list(run_dir.glob("posterior-*"))

    arrays = {
        "float": np.array([1.5]),
        "twice": np.array([1, 1]),
        "negative": np.array([-1]),
        "large": np.array([41]),
        "none": np.array([], dtype=np.int64),
        "matrix": np.zeros((2, 2), dtype=np.int64),
        "text": np.array(["a"]),
        "complex": np.array([1j]),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        fit(f"{name}.npy", f"{name}.npy")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    fit("objects.npy", "objects.npy")
    (tmp_path / "empty.npy").write_bytes(b"")
    fit("empty.npy", "empty.npy")
    (tmp_path / "zip.npy").write_bytes(b"")
    with open(tmp_path / "zip.npy", "wb") as file:
        np.savez(file, a=np.arange(3))
    fit("zip.npy", "zip.npy")
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    fit("words.txt", "words.txt", "one flat index per line")
    fit("absent.npy", "absent.npy", "no such file")
    both = tool("fit", "--indices", tmp_path / "large.npy", "--k", 3, cwd=project.folder)
    refused(both, "--indices", "--k")


@pytest.mark.parametrize("kind", ["uint64", "uint32", "uint8", "int16"])
def test_indices_of_other_integer_types(tool: Tool, project: Project, tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "i.npy", np.array([3, 1, 2], dtype=kind))
    assert tool("fit", "--indices", tmp_path / "i.npy", "--json", cwd=project.folder).json()["k"] == 3


def test_no_spec(tool: Tool, tmp_path: Path) -> None:
    refused(tool("evaluate", cwd=tmp_path), "sublaplace.yaml", "--spec")


def test_all_problems_of_a_spec_at_once(tool: Tool, project: Project) -> None:
    text = (project.folder / "sublaplace.yaml").read_text()
    text = text.replace("task: regression", "task: regresion").replace("path: data.csv", "pth: data.csv")
    text = text.replace("prior_precision: 1.0", "prior_precision: -1\n  prior_precision: 2")
    (project.folder / "sublaplace.yaml").write_text(text + "colour: red\n")
    run = tool("jacobians", cwd=project.folder)
    refused(run, "sublaplace.yaml:2:", "did you mean 'regression'", "pth", "colour", "prior_precision")
    assert sum("sublaplace.yaml:" in line for line in run.err.splitlines()) >= 4
    (project.folder / "sublaplace.yaml").write_text("version: 1\n  task: [regression\n")
    refused(tool("jacobians", cwd=project.folder), "sublaplace.yaml:2:")
    (project.folder / "sublaplace.yaml").write_text("")
    refused(tool("jacobians", cwd=project.folder), "sublaplace.yaml")


class Evil:
    def __reduce__(self) -> tuple:
        return (os.system, ("touch EVIL",))


def test_checkpoints_that_cannot_be(tool: Tool, project: Project) -> None:
    def check(path: Path, *words: str) -> None:
        run_dir = project.folder / "r"
        run = tool("evaluate", "--k", 5, "--checkpoint", path, "--run-dir", run_dir, cwd=project.folder)
        refused(run, path.name, *words)
        assert not run_dir.exists()

    state, folder = project.model.state_dict(), project.folder
    torch.save({"model": state, "code": Evil()}, folder / "code.pt")
    check(folder / "code.pt", "posix.system", "state_dict()")
    torch.save(project.model, folder / "whole.pt")
    check(folder / "whole.pt", "torch.nn.modules", "state_dict()")
    assert not (folder / "EVIL").exists()
    wrong = {**state, "0.weight": torch.zeros(8, 4), "extra.bias": torch.zeros(2)}
    del wrong["2.bias"]
    save_file(wrong, folder / "wrong.safetensors")
    check(folder / "wrong.safetensors", "0.weight", "(8, 4)", "(8, 3)", "extra.bias", "2.bias", "missing")
    save_file({**state, "0.bias": torch.full((8,), float("nan"))}, folder / "nan.safetensors")
    check(folder / "nan.safetensors", "0.bias")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[:-9])
    check(folder / "cut.safetensors")
    torch.save(state, folder / "good.pt")
    (folder / "cut.pt").write_bytes((folder / "good.pt").read_bytes()[:-99])
    check(folder / "cut.pt", "truncated")
    (folder / "page.pt").write_text("<html>404</html>")
    check(folder / "page.pt", "HTML")
    (folder / "empty.pt").write_bytes(b"")
    check(folder / "empty.pt", "empty")
    (folder / "lfs.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    check(folder / "lfs.pt", "git lfs pull")
    torch.save({"a": 1}, folder / "no_tensors.pt")
    check(folder / "no_tensors.pt")


def test_bombs_take_no_memory(tool: Tool, project: Project) -> None:
    quiet = tool("evaluate", "--k", 5, cwd=project.folder).peak
    folder = project.folder

    def check(run: object, *words: str) -> None:
        refused(run, *words)
        assert run.peak < quiet + 200 * 2**20

    giant = torch.zeros(1).expand(8, 2**33)
    torch.save({**project.model.state_dict(), "0.weight": giant}, folder / "giant.pt")
    check(tool("evaluate", "--checkpoint", "giant.pt", cwd=folder), "giant.pt", "0.weight")
    torch.save(project.model.state_dict(), folder / "good.pt")
    with zipfile.ZipFile(folder / "good.pt") as source, zipfile.ZipFile(folder / "flat.pt", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name), compress_type=zipfile.ZIP_DEFLATED)
        target.writestr("good/data/99", b"\0" * 2**28, compress_type=zipfile.ZIP_DEFLATED)
    check(tool("evaluate", "--checkpoint", "flat.pt", cwd=folder), "flat.pt", "compressed")
    project.npz()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**30, 3)}
    for blocks in (0, 32):  # a header that claims what is not there; half a GiB of zeros in half a MiB
        with zipfile.ZipFile(folder / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, width in (("x.npy", 3), ("y.npy", 1)):
                with archive.open(name, "w", force_zip64=True) as member:
                    rows = 2**30 if not blocks else blocks * 2**24 // 8 // 3
                    np.lib.format.write_array_header_1_0(member, {**header, "shape": (rows, width)})
                    for _ in range(blocks if width == 3 else 0):
                        member.write(bytes(2**24))
        check(tool("evaluate", "--memory", "4GiB" if not blocks else "100MB", cwd=folder), "data.npz")


def test_data_that_cannot_be(tool: Tool, project: Project) -> None:
    folder, spec = project.folder, project.spec
    header = ["a", "b", "c", "y0"]
    good = np.hstack([project.x, project.y])

    def check(*words: str, values: object = None, text: str | None = None, **data: object) -> None:
        project.write_csv("data.csv", header, good if values is None else values)
        if text is not None:
            (folder / "data.csv").write_text(text)
        project.use(data={**spec["data"], **data})
        refused(tool("evaluate", "--k", 5, cwd=folder), *words)
        assert not (folder / ".sublaplace").exists()
        project.use(data=spec["data"])

    for value in (np.nan, np.inf):
        broken = good.copy()
        broken[4, 1] = value
        check("data.csv", "line 6", "'b'", values=broken)
        broken = good.copy()
        broken[25, 3] = value
        check("data.csv", "line 27", "y0", values=broken)
    project.write_csv("data.csv", header, good)
    lines = (folder / "data.csv").read_text().splitlines()
    lines[6] = lines[6].replace(lines[6].split(",")[2], "many")
    check("data.csv", "many", "c", text="\n".join(lines))
    lines[6] = "1,2"
    check("data.csv", "7", text="\n".join(lines))
    check("data.csv", text="")
    check("data.csv", text="a,b,c,y0\n")
    check("cannot take a row", "(1, 2)", "mlp", columns={"target": "y0", "input": ["a", "b"]})
    check("y9", columns={"target": "y9", "input": ["a", "b", "c"]})
    check("train", "empty", splits={"train": {"rows": "5:5"}, "test": {"rows": "22:"}})
    check("test", "empty", splits={"train": {"rows": "0:5"}, "test": {"rows": "99:"}})
    check("40", splits={"train": {"n": 40}, "test": {"rows": "22:"}})
    check("absent.csv", "data.path", "missing", path="absent.csv")
    check("'a' is used more than once", columns={"target": ["y0", "a"], "input": ["a", "b", "c"]})
    check("no targets", "data.columns.target", columns={"input": ["a", "b", "c"]})


def test_labels_that_cannot_be(tool: Tool, make: Make) -> None:
    project = make("multiclass", 3)

    def check(y: np.ndarray, *words: str) -> None:
        project.write_csv("data.csv", ["a", "b", "c", "y0"], np.hstack([project.x, y]))
        refused(tool("evaluate", "--k", 5, cwd=project.folder), *words)

    check(np.where(np.arange(30) == 4, 3, project.y.T).T, "class label 3", "row 4", "0 to 2")
    check(np.where(np.arange(30) == 4, -1, project.y.T).T, "-1", "line 6")
    check(np.where(np.arange(30) == 4, 0.5, project.y.T).T, "0.5", "line 6")
    check(np.zeros((30, 1)), "class", "0")
    binary = make("binary", name="binary")
    binary.write_csv("data.csv", ["a", "b", "c", "y0"], np.hstack([binary.x, binary.y + 1]))
    refused(tool("evaluate", "--k", 5, cwd=binary.folder), "2", "0")
    binary.write_csv("data.csv", ["a", "b", "c", "y0"], np.hstack([binary.x, np.ones((30, 1))]))
    refused(tool("evaluate", "--k", 5, cwd=binary.folder), "class")
    three = make("multiclass", 3, name="three").use(task="binary")
    refused(tool("evaluate", "--k", 5, cwd=three.folder), "expected 0 or 1", "binary-logodds")
    two = make("regression", 2, name="two").use(model=make(name="of_one").spec["model"])
    save(mlp([3, 8, 1]), two.folder / "model.safetensors")
    refused(tool("evaluate", "--k", 5, cwd=two.folder), "2 target columns", "1 output")
    one = make("binary", name="one").use(task="multiclass")
    refused(tool("evaluate", "--k", 5, cwd=one.folder), "multiclass", "task: binary")


def test_paths_stay_in_the_folder(tool: Tool, project: Project, tmp_path: Path) -> None:
    save(project.model, tmp_path / "outside.safetensors")
    (tmp_path / "outside.csv").write_bytes((project.folder / "data.csv").read_bytes())
    os.symlink(tmp_path / "outside.safetensors", project.folder / "link.safetensors")
    places = [
        {"model": {**project.spec["model"], "weights": {"path": "../outside.safetensors"}}},
        {"model": {**project.spec["model"], "weights": {"path": "link.safetensors"}}},
        {"model": {**project.spec["model"], "weights": {"path": str(tmp_path / "outside.safetensors")}}},
        {"data": {**project.spec["data"], "path": "../outside.csv"}},
        {"oracle": {"weights": {"path": "../outside.safetensors"}}},
        {"oracle": {"predictions": "../outside.csv", "array": "y0"}},
    ]
    for place in places:
        path = project.save(project.changed(**place), "outside.yaml")
        options = ("evaluate", "--k", 5, "--spec", path)
        run = tool(*options, cwd=project.folder)
        refused(run, "outside.yaml:", "leads out of the folder", "--allow-outside")
        assert not (project.folder / ".sublaplace").exists()
    assert tool(*options, "--allow-outside", "--json", cwd=project.folder).json()["rows"][0]["coverage95"] is not None
    command_line = tool("evaluate", "--k", 5, "--checkpoint", "../outside.safetensors", cwd=project.folder)
    assert command_line.code == 0


NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.a, self.b, self.what = nn.Linear(3, 8), nn.Linear(8, 1), what
        self.odd = nn.Identity()
    def forward(self, x):
        h = torch.tanh(self.a(x))
        if self.what == "dropout":
            h = torch.nn.functional.dropout(h, 0.5, training=True)
        if self.what == "batch":
            h = h - h.mean(0, keepdim=True)
        if self.what == "infinite":
            h = self.odd(h / (x[:, :1] - x[:, :1]))
        if self.what == "gradient":
            h = torch.sqrt(h - h.detach())
        if self.what == "raises":
            raise KeyError("my own mistake")
        if self.what == "late" and x.shape[0] == 1 and not torch.is_grad_enabled() and False:
            pass
        out = self.b(h)
        if self.what == "list":
            return [out]
        return out

def make(what):
    if what == "fails":
        raise RuntimeError("no network today")
    if what == "string":
        return "network"
    net = Net(what)
    if what == "frozen":
        net.requires_grad_(False)
    return net

def bad(problem, k):
    return {"short": [0], "twice": [0] * k}["twice"]

def short(problem, k):
    return list(range(k - 1))

def crash(problem, k):
    raise ZeroDivisionError("oh")
"""


def test_networks_that_cannot_be(tool: Tool, project: Project) -> None:
    (project.folder / "nets.py").write_text(NETS)
    space: dict = {}
    exec(NETS, space)
    save(space["Net"](""), project.folder / "own.safetensors")

    def check(what: str, *words: str, code: int = 2, allow: tuple = ("--allow-code", "nets")) -> None:
        build = {"import": "nets:make", "args": {"what": what}}
        project.use(model={"build": build, "weights": {"path": "own.safetensors"}})
        run = tool("evaluate", "--k", 5, *allow, cwd=project.folder)
        refused(run, *words, code=code)
        assert not list(project.folder.glob(".sublaplace/*/*.safetensors"))

    check("", "nets", "--allow-code nets", allow=())
    check("", "nets", "--allow-code nets", allow=("--allow-code", "net"))
    check("dropout", "different outputs", "eval mode")
    check("batch", "depends on the other rows", "BatchNorm")
    check("infinite", "not finite", "'odd'", code=3)
    check("gradient", "gradient", "'a.weight'", "not finite", code=3)
    check("raises", "my own mistake")
    check("list", "list", "expected a floating-point tensor")
    check("fails", "no network today")
    check("string", "str", "torch.nn.Module")
    check("frozen", "no trainable parameter")
    build = {"import": "nets:mak", "args": {"what": ""}}
    project.use(model={"build": build, "weights": {"path": "own.safetensors"}})
    refused(tool("evaluate", "--allow-code", "nets", cwd=project.folder), "mak", "did you mean 'make'")
    project.use(model={"build": {**build, "import": "nets:make"}, "weights": {"path": "own.safetensors"}})
    for function, word in (("bad", "twice"), ("short", "expected 5 indices"), ("crash", "ZeroDivisionError: oh")):
        method = f"nets:{function}"
        run = tool("evaluate", "--method", method, "--k", 5, "--allow-code", "nets", cwd=project.folder)
        refused(run, method, word)


def test_numerics_that_fail(tool: Tool, project: Project) -> None:
    project.use(posterior={"prior_precision": 1e-14, "noise_variance": 1e-8})
    run = tool("evaluate", "--k", 30, "--run-dir", project.folder / "r", cwd=project.folder)
    refused(run, "prior_precision", "times the prior precision", code=3, folder=project.folder / "r")
    project.use(posterior={"prior_precision": {"0.*": 1.0}})
    refused(tool("evaluate", "--k", 5, cwd=project.folder), "2.weight", "'*': NUMBER")
    project.use(posterior={"prior_precision": {"*": 1.0, "9.*": 2.0}})
    refused(tool("evaluate", "--k", 5, cwd=project.folder), "9.*")


def test_oracles_that_cannot_be(tool: Tool, make: Make) -> None:
    project = make("binary")
    ten = mlp([3, 8, 4])
    save(ten, project.folder / "ten.safetensors")
    np.save(project.folder / "short.npy", np.zeros(7))
    np.save(project.folder / "nan.npy", np.full(8, np.nan))
    args = {"in": 3, "hidden": [8], "out": 4, "act": "tanh"}
    build = {"arch": "mlp", "args": args}
    for oracle, words in (
        ({"weights": {"path": "absent.safetensors"}}, ["absent.safetensors"]),
        ({"build": build, "weights": {"path": "ten.safetensors"}}, ["(8, 4)", "(8, 1)", "binary-logodds"]),
        ({"predictions": "short.npy"}, ["(7, 1)", "(8, 1)"]),
        ({"predictions": "nan.npy"}, ["nan.npy"]),
        ({"predictions": "absent.npz", "array": "f"}, ["absent.npz"]),
    ):
        project.use(oracle=oracle)
        run = tool("evaluate", "--k", 5, cwd=project.folder)
        refused(run, *words)
        assert not list(project.folder.glob(".sublaplace/*/*.safetensors")), "known before any computing"


def test_device_and_extras(tool: Tool, project: Project) -> None:
    if not torch.cuda.is_available():
        for name in ("cuda", "cuda:3"):
            refused(tool("evaluate", "--device", name, cwd=project.folder), f"--device {name}", "no CUDA", "cpu")
    hide = project.folder / "hide"
    hide.mkdir()
    # an import of pyarrow fails, as in an environment without the extra
    (hide / "sitecustomize.py").write_text("import sys\nsys.modules.update(pyarrow=None, PIL=None)\n")
    from cli.cli_tools import ENVIRONMENT, call

    env = {"PYTHONPATH": f"{hide}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    data = {**project.spec["data"], "format": "parquet", "path": "data.parquet"}
    (project.folder / "data.parquet").write_bytes(b"PAR1")
    project.use(data=data)
    refused(
        call("evaluate", "--k", 5, cwd=project.folder, env=env),
        "parquet",
        "in a clone of sublaplace: pip install '.[parquet]'",
    )
    assert not (project.folder / ".sublaplace").exists()


def test_a_selection_for_other_weights(tool: Tool, project: Project, tmp_path: Path) -> None:
    made = tool("select", "--k", 5, "--json", "--run-dir", tmp_path / "a", cwd=project.folder).json()
    path = made["artifacts"]["indices-gradient-k5"]
    save(mlp([3, 8, 1], seed=9), project.folder / "model.safetensors")
    run = tool("fit", "--indices", path, "--run-dir", tmp_path / "b", cwd=project.folder)
    refused(run, path, "other weights", "sublaplace select")
    scores = tool("fit", "--indices", tmp_path / "a" / "scores.safetensors", cwd=project.folder)
    refused(scores, "holds scores, expected indices")
    save_file(load_file(path), tmp_path / "bare.safetensors")
    refused(tool("fit", "--indices", tmp_path / "bare.safetensors", cwd=project.folder), "not written by sublaplace")
    for text in ("[1]", "null", "{}", json.dumps({"checksum": "x"}), "{"):
        save_file(load_file(path), tmp_path / "odd.safetensors", metadata={"sublaplace": text})
        refused(tool("fit", "--indices", tmp_path / "odd.safetensors", cwd=project.folder), "odd.safetensors")
