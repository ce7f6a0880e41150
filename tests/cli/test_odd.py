"""Odd but legal: small and large numbers, strange paths, other types; and odd but wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.cli_tools import Project, Run, Tool, core, refused, save
from safetensors.torch import save_file

Make = Callable[..., Project]
CHOICE = ("evaluate", "--method", "gradient,greedy,diagonal,full,map", "--k", "5", "--json")


def rewrite(project: Project, x: np.ndarray, y: np.ndarray) -> None:
    project.write_csv("data.csv", ["a", "b", "c", "y0"], np.hstack([x, y]))


def reasons_for_nulls(result: dict) -> None:
    for row in [*result["rows"], result["full"]]:
        nulls = {key for key, value in row.items() if value is None and key != "k"}
        above_full = {"retained"} if (row["retained"] or 0) > 1 + 1e-6 else set()  # explained, because it looks wrong
        assert set(row["why"]) == nulls | above_full


def test_one_row(tool: Tool, project: Project) -> None:
    project.spec["data"]["splits"] = {"train": {"rows": "0:1"}, "test": {"rows": "1:2"}}
    project.save()
    result = tool(*CHOICE, "--method", "gradient,greedy,full", "--k", "41", cwd=project.folder).json()
    assert (result["n_train"], result["n_test"]) == (1, 1)
    for row in result["rows"]:
        assert row["w2_se"] is None
        assert "one row" in row["why"]["w2_se"]
    data = {**project.spec["data"], "standardise": {"input": "from-train", "target": "from-train"}}
    project.use(data=data)
    tool(*CHOICE, cwd=project.folder).json()


def test_all_parameters_and_ties(tool: Tool, project: Project) -> None:
    for k in ("41", "40,41,1"):
        result = tool(*CHOICE[:3], "--k", k, "--json", cwd=project.folder).json()
        for row in result["rows"]:
            if row["k"] == 41:
                assert row["w2"] == pytest.approx(0, abs=1e-7)
                assert row["retained"] == pytest.approx(1, abs=1e-9)
    rewrite(project, np.ones_like(project.x), project.y)  # every row the same
    result = tool(*CHOICE, "--k", "41", cwd=project.folder).json()
    assert result["rows"][0]["w2"] == pytest.approx(0, abs=1e-7)
    rewrite(project, np.zeros_like(project.x), np.zeros_like(project.y))  # constant inputs and targets
    data = {**project.spec["data"], "standardise": {"input": "from-train", "target": "from-train"}}
    tool(*CHOICE, cwd=project.folder).json()
    tool(*CHOICE, cwd=project.use(data=data).folder).json()


def test_no_gradient_at_all(tool: Tool, project: Project) -> None:
    """Zero inputs into a network without biases that count: sigma is 0 or constant, and no number is NaN."""
    state = {name: torch.zeros_like(tensor) for name, tensor in project.model.state_dict().items()}
    save_file(state, project.folder / "model.safetensors")
    reasons_for_nulls(tool(*CHOICE, cwd=project.folder).json())


@pytest.mark.parametrize("size", [1e-30, 1e8, 1e30])
def test_tiny_and_huge_values(tool: Tool, project: Project, size: float) -> None:
    for x, y in ((project.x * size, project.y), (project.x, project.y * size), (project.x * size, project.y * size)):
        rewrite(project, x, y)
        run = tool(*CHOICE, cwd=project.folder)
        if run.code == 0:
            reasons_for_nulls(run.json())
        else:
            refused(run, code=3)


def test_huge_weights(tool: Tool, project: Project) -> None:
    state = {name: tensor * 1e30 for name, tensor in project.model.state_dict().items()}
    save_file(state, project.folder / "model.safetensors")
    run = tool(*CHOICE, cwd=project.folder)
    if run.code != 0:
        refused(run, code=3)


def test_strange_paths(tool: Tool, make: Make, tmp_path: Path) -> None:
    plain = make()
    expected = core(tool(*CHOICE, cwd=plain.folder).json())
    for name in ("with space", "ünï-cødé 模型", "-dash", "new\nline", "quo'te\"s", "per%cent", "[brackets]*"):
        make(name=name)
        spec = f"./{name}/sublaplace.yaml"
        run = tool(*CHOICE, "--spec", spec, "--run-dir", tmp_path / f"run {name}", cwd=tmp_path, env={"HOME": None})
        assert core(run.json()) == expected, name
    os.symlink(plain.folder, tmp_path / "linked")
    assert core(tool(*CHOICE, cwd=tmp_path / "linked").json()) == expected
    (plain.folder / "deep" / "er").mkdir(parents=True)
    run = tool(*CHOICE, cwd=plain.folder / "deep" / "er")  # found upward
    assert core(run.json()) == expected
    assert not (plain.folder / "deep" / "er" / ".sublaplace").exists()


def test_a_run_folder_that_is_not_utf8(tool: Tool, project: Project, tmp_path: Path) -> None:
    run = tool(*CHOICE, "--run-dir", os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), cwd=project.folder)
    if run.code == 0:
        run.json()
    else:
        refused(run, "--run-dir")


def test_a_linked_spec(tool: Tool, project: Project, tmp_path: Path) -> None:
    """Paths are relative to the spec: to the link, where the data are not, and the message says where it looked."""
    (tmp_path / "links").mkdir()
    os.symlink(project.folder / "sublaplace.yaml", tmp_path / "links" / "sublaplace.yaml")
    run = tool(*CHOICE, cwd=tmp_path / "links")
    if run.code == 0:
        assert run.json()["n_params"] == 41
    else:
        refused(run, "model.safetensors")


def test_other_types_of_weights(tool: Tool, project: Project) -> None:
    state = project.model.state_dict()
    expected = tool(*CHOICE, cwd=project.folder).json()["rows"]
    save_file({name: t.double() for name, t in state.items()}, project.folder / "model.safetensors")
    assert tool(*CHOICE, cwd=project.folder).json()["rows"] == expected
    for kind, tolerance in ((torch.float16, 1e-2), (torch.bfloat16, 1e-1)):
        save_file({name: t.to(kind) for name, t in state.items()}, project.folder / "model.safetensors")
        found = tool(*CHOICE, cwd=project.folder).json()["rows"]
        assert found[0]["w2"] == pytest.approx(expected[0]["w2"], abs=tolerance)
    save_file({name: t.long() for name, t in state.items()}, project.folder / "model.safetensors")
    run = tool(*CHOICE, cwd=project.folder)
    if run.code != 0:
        refused(run, "model.safetensors")


@pytest.mark.parametrize("kind", ["bool", "uint8", "int32", "float16", "float64", ">f4"])
def test_other_types_of_inputs(tool: Tool, project: Project, kind: str) -> None:
    whole = np.random.default_rng(0).integers(0, 2, size=(30, 3))
    rewrite(project, whole, project.y)
    expected = tool(*CHOICE, cwd=project.folder).json()["rows"]
    project.npz(x=whole.astype(kind))
    found = tool(*CHOICE, cwd=project.folder).json()["rows"]
    assert [row["w2"] for row in found] == pytest.approx([row["w2"] for row in expected], abs=1e-9)


def test_options_do_not_leak_between_runs(tool: Tool, project: Project, tmp_path: Path) -> None:
    """What is not part of the fingerprint changes no number: full, max-artifact, memory, method order."""
    folder = ("--run-dir", tmp_path / "r")
    tool(*CHOICE, *folder, "--full", "none", cwd=project.folder)
    after = tool(*CHOICE, *folder, cwd=project.folder)
    fresh = tool(*CHOICE, "--run-dir", tmp_path / "fresh", cwd=project.folder)
    assert core(after.json()) == core(fresh.json())
    from safetensors.torch import load_file

    for name in ("predictions-gradient-k5", "predictions-full-k41"):
        mine, theirs = (load_file(tmp_path / place / f"{name}.safetensors") for place in ("r", "fresh"))
        assert mine.keys() == theirs.keys(), f"{name}: std_full is known now"
    bare = tool(*CHOICE, *folder, "--full", "none", cwd=project.folder).json()
    assert bare["rows"][0]["w2"] is None


def test_a_greedy_of_another_pool(tool: Tool, project: Project, tmp_path: Path) -> None:
    a = tool("select", "--method", "greedy", "--k", 9, "--pool", "12", "--json", cwd=project.folder).json()
    path = a["artifacts"]["indices-greedy-k9"]
    expected = tool("evaluate", "--method", "greedy", "--k", 9, "--json", cwd=project.folder).json()
    tool("fit", "--indices", path, cwd=project.folder)  # the default folder is that of --pool all
    again = tool("evaluate", "--method", "greedy", "--k", 9, "--json", cwd=project.folder).json()
    assert core(again) == core(expected)


def test_two_names_for_one_run(tool: Tool, project: Project) -> None:
    """An edited comment is the same run; another prior is not."""
    first = tool(*CHOICE, cwd=project.folder).json()
    path = project.folder / "sublaplace.yaml"
    path.write_text("# a comment\n" + path.read_text())
    second: Run = tool(*CHOICE, cwd=project.folder)
    assert core(second.json()) == core(first)
    assert "reusing" in second.err


def test_an_oracle_that_changes(tool: Tool, project: Project) -> None:
    project.use(oracle={"predictions": "oracle.npy"})
    seen = []
    for shift in (0, 100):
        np.save(project.folder / "oracle.npy", np.full(8, float(shift)))
        seen.append(tool(*CHOICE, cwd=project.folder).json()["rows"][0]["coverage95"])
    assert seen[0] > seen[1] == 0


def test_own_code_that_changes(tool: Tool, project: Project) -> None:
    nets = project.folder / "nets.py"
    text = "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))\n"
    text += "def pick(problem, k):\n    return list(range(k))\n"
    project.use(model={"build": {"import": "nets:make"}, "weights": {"path": "model.safetensors"}})
    options = ("evaluate", "--method", "nets:pick", "--k", "5", "--json", "--allow-code", "nets")
    nets.write_text(text)
    first = tool(*options, cwd=project.folder).json()["rows"]
    nets.write_text(text.replace("Tanh", "ReLU"))
    second = tool(*options, cwd=project.folder).json()["rows"]
    nets.write_text(text.replace("list(range(k))", "list(range(20, 20 + k))"))
    third = tool(*options, cwd=project.folder).json()["rows"]
    assert first != second
    assert first != third


def test_a_selector_of_a_module_beside_the_spec(tool: Tool, project: Project) -> None:
    """The selector's module may change while the network is a built-in one: its choice is never stale."""
    picks = project.folder / "picks.py"
    options = ("evaluate", "--method", "picks:pick", "--k", "5", "--json", "--allow-code", "picks")
    seen = []
    for start in (0, 20):
        picks.write_text(f"def pick(problem, k):\n    return list(range({start}, {start} + k))\n")
        seen.append(tool(*options, cwd=project.folder).json()["rows"])
    assert seen[0] != seen[1]


def test_validation_and_subsampled_splits(tool: Tool, project: Project) -> None:
    splits = {"train": {"rows": "0:22", "n": 10, "seed": 3}, "test": {"same_as": "train"}, "reference": {"rows": ":5"}}
    project.spec["data"]["splits"] = splits
    project.save()
    result = tool(*CHOICE, cwd=project.folder).json()
    assert (result["n_train"], result["n_test"]) == (10, 10)
    assert {"jacobians-train", "jacobians-reference"} <= set(result["artifacts"])
    again = tool("jacobians", "--split", "reference", "--json", cwd=project.folder).json()
    assert set(again["artifacts"]) == {"jacobians-reference"}


def test_output_with_one_axis(tool: Tool, project: Project) -> None:
    (project.folder / "flat.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n    def forward(self, x):\n        return super().forward(x)[:, 0]\n"
        "def make():\n    return Net(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))\n"
    )
    expected = tool(*CHOICE, cwd=project.folder).json()["rows"]
    save(project.model, project.folder / "model.safetensors")
    project.use(model={"build": {"import": "flat:make"}, "weights": {"path": "model.safetensors"}})
    found = tool(*CHOICE, "--allow-code", "flat", cwd=project.folder).json()["rows"]
    assert [row["w2"] for row in found] == pytest.approx([row["w2"] for row in expected], abs=1e-9)


def test_equal_splits_are_not_exchanged(tool: Tool, project: Project, tmp_path: Path) -> None:
    """A Jacobian of the test rows under the name of the training rows, with as many of them."""
    import shutil

    project.spec["data"]["splits"] = {"train": {"rows": "0:15"}, "test": {"rows": "15:"}}
    project.save()
    run = tool("jacobians", "--run-dir", tmp_path / "r", cwd=project.folder)
    assert run.code == 0
    (tmp_path / "r" / "scores.safetensors").unlink()
    shutil.copy(tmp_path / "r" / "jacobians-test.safetensors", tmp_path / "r" / "jacobians-train.safetensors")
    run = tool(*CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder)
    refused(run, "jacobians-train.safetensors")


def test_code_behind_own_code_that_changes(tool: Tool, project: Project) -> None:
    """The network's module imports a helper beside it; an edit there is another network."""
    (project.folder / "nets.py").write_text(
        "from torch import nn\nfrom layers import act\n"
        "def make():\n    return nn.Sequential(nn.Linear(3, 8), act(), nn.Linear(8, 1))\n"
    )
    project.use(model={"build": {"import": "nets:make"}, "weights": {"path": "model.safetensors"}})
    seen = []
    for name in ("Tanh", "ReLU"):
        (project.folder / "layers.py").write_text(f"from torch.nn import {name} as act\n")
        seen.append(tool(*CHOICE, "--allow-code", "nets", cwd=project.folder).json()["rows"])
    assert seen[0] != seen[1], "stale Jacobians were reused"


def test_the_same_weights_by_another_name_are_the_same_run(tool: Tool, project: Project, tmp_path: Path) -> None:
    first = tool(*CHOICE, "--run-dir", tmp_path / "r", cwd=project.folder).json()
    (tmp_path / "copy.safetensors").write_bytes((project.folder / "model.safetensors").read_bytes())
    options = ("--run-dir", tmp_path / "r", "--checkpoint", tmp_path / "copy.safetensors")
    second = tool(*CHOICE, *options, cwd=project.folder)
    assert core(second.json()) == core(first)
    assert "reusing" in second.err


def test_results_never_replace_inputs(tool: Tool, project: Project) -> None:
    before = {path.name: path.read_bytes() for path in project.folder.iterdir()}
    for options in (
        ("--predictions", "model.safetensors"),
        ("-o", "data.csv"),
        ("--predictions", "data.csv"),
        ("-o", "sublaplace.yaml"),
    ):
        for more in ((), ("--overwrite",), ("--overwrite", "--dry-run")):
            run = tool("evaluate", "--k", 5, *options, *more, cwd=project.folder)
            for name, content in before.items():
                assert (project.folder / name).read_bytes() == content, f"{name} was lost: {options} {more}"
            refused(run, options[1])


def test_outputs_that_cannot_be_written(tool: Tool, project: Project, tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    for path in (tmp_path / "folder.json", tmp_path / ("x" * 300 + ".json")):
        run = tool("evaluate", "--k", 5, "-o", path, "--overwrite", cwd=project.folder)
        refused(run, "-o", path.name)
        assert "--run-dir" not in run.err, "another run folder would not help"
        assert not (project.folder / ".sublaplace").exists(), "known before any computing"


def test_sizes_beyond_reason(tool: Tool, project: Project) -> None:
    for option in ("--memory", "--max-artifact"):
        run = tool("evaluate", "--k", 5, option, "9" * 400 + "GiB", cwd=project.folder)
        if run.code:
            refused(run, option)
