"""What a run and a posterior are bound to: the weights and the function of the network, not the text of its code."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.cli_tools import Project, Tool, contents, refused, save
from cli.test_forged import forge, metadata
from torch import nn

from sublaplace_cli import load_predictor
from sublaplace_cli.errors import UserError

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))
"""
SAME = {
    "a comment": CODE + "# a comment\n",
    "another layout of the code": CODE.replace("import torch\n", "import torch  # torch\n\n\n"),
    "a local variable": CODE.replace(
        "return self.last(torch.tanh(self.first(x)))", "z = self.first(x).tanh()\n        return self.last(z)"
    ),
    "code that is not used": CODE + "def unused():\n    return 3\n",
}
OTHER = {
    "relu": CODE.replace("torch.tanh", "torch.relu"),
    "a factor": CODE.replace("return self", "return 1.001 * self"),
    "a detach": CODE.replace("torch.tanh(self.first(x))", "torch.tanh(self.first(x)).detach()"),
    "one input": CODE.replace("self.first(x)", "self.first(x * torch.tensor([1.0, 1.0, 0.9], dtype=x.dtype))"),
}


class Coded(Project):
    """A project whose network is in `net.py` beside the spec."""

    def __init__(self, folder: Path, code: str = CODE) -> None:
        super().__init__(folder)
        self.code(code)
        state = self.model.state_dict()
        names = {"0.weight": "first.weight", "0.bias": "first.bias", "2.weight": "last.weight", "2.bias": "last.bias"}
        torch.save({names[name]: tensor for name, tensor in state.items()}, folder / "m.pt")
        self.use(model={"build": {"import": "net:Net"}, "weights": {"path": "m.pt"}})

    def code(self, text: str) -> None:
        (self.folder / "net.py").write_text(text)

    def folders(self) -> set[str]:
        return {path.name for path in (self.folder / ".sublaplace").iterdir()}

    @property
    def posterior(self) -> Path:
        (path,) = (self.folder / ".sublaplace").glob("*/posterior-gradient-k5.safetensors")
        return path


@pytest.fixture
def coded(tmp_path: Path) -> Coded:
    return Coded(tmp_path / "project")


def evaluate(tool: Tool, project: Coded, *words: Any, **more: Any) -> Any:
    return tool("evaluate", "--k", 5, "--allow-code", "net", "--json", *words, cwd=project.folder, **more)


def predict(tool: Tool, project: Coded, posterior: Path, *words: Any, **more: Any) -> Any:
    options = ("--posterior", posterior, "--allow-code", "net", "--json")
    return tool("evaluate", *options, *words, cwd=project.folder, **more)


@pytest.mark.parametrize("change", SAME)
def test_code_with_the_same_function_keeps_everything(tool: Tool, coded: Coded, change: str) -> None:
    before = evaluate(tool, coded).json()
    files, posterior = contents(coded.folder / ".sublaplace"), coded.posterior
    coded.code(SAME[change])
    again = evaluate(tool, coded)
    assert again.json()["provenance"] == before["provenance"]
    assert contents(coded.folder / ".sublaplace") == files
    for name in ("jacobians-train", "scores", "indices-gradient-k5"):
        assert f"reusing {name}" in again.err
    assert predict(tool, coded, posterior).code == 0


@pytest.mark.parametrize("change", OTHER)
def test_another_function_of_the_same_weights_is_another_run(tool: Tool, coded: Coded, change: str) -> None:
    before = evaluate(tool, coded).json()
    posterior = coded.posterior
    coded.code(OTHER[change])
    other = evaluate(tool, coded)
    assert "reusing" not in other.err
    assert len(coded.folders()) == 2
    own, theirs = (result["provenance"] for result in (other.json(), before))
    assert own["weights_sha256"] == theirs["weights_sha256"]
    assert own["fingerprint"] != theirs["fingerprint"]
    words = ("the weights are those that it was made for, but the network gives other", "was the code of the network")
    refused(predict(tool, coded, posterior), *words)
    indices = posterior.with_name("indices-gradient-k5.safetensors")
    refused(tool("fit", "--indices", indices, "--allow-code", "net", cwd=coded.folder), *words)


def test_changed_weights(tool: Tool, coded: Coded) -> None:
    before = evaluate(tool, coded).json()
    posterior = coded.posterior
    state = torch.load(coded.folder / "m.pt", weights_only=True)
    state["last.bias"] += 1e-6  # the smallest change that float32 holds
    torch.save(state, coded.folder / "m.pt")
    other = evaluate(tool, coded)
    assert "reusing" not in other.err
    assert other.json()["provenance"]["weights_sha256"] != before["provenance"]["weights_sha256"]
    refused(predict(tool, coded, posterior), "it was fitted for other weights")


def test_a_change_below_float32_is_one(tool: Tool, coded: Coded) -> None:
    state = {name: t.double() for name, t in torch.load(coded.folder / "m.pt", weights_only=True).items()}
    torch.save(state, coded.folder / "m.pt")
    evaluate(tool, coded, "--dtype", "float64").json()
    state["last.bias"] += 1e-14
    torch.save(state, coded.folder / "m.pt")
    assert "reusing" not in evaluate(tool, coded, "--dtype", "float64").err


def test_another_file_with_the_same_tensors_is_the_same_run(tool: Tool, coded: Coded) -> None:
    before = evaluate(tool, coded).json()
    state = torch.load(coded.folder / "m.pt", weights_only=True)
    (coded.folder / "m.pt").unlink()
    save(_as_module(state), coded.folder / "other.safetensors")
    coded.use(model={**coded.spec["model"], "weights": {"path": "other.safetensors"}})
    again = evaluate(tool, coded).json()
    assert again["provenance"] == before["provenance"]
    torch.save({f"module.{name}": t for name, t in reversed(state.items())}, coded.folder / "third.pt")
    options = {"path": "third.pt", "rename": {"module.first.": "first.", "module.last.": "last."}}
    coded.use(model={**coded.spec["model"], "weights": options})
    assert evaluate(tool, coded).json()["provenance"] == before["provenance"]
    assert len(coded.folders()) == 1


def _as_module(state: dict[str, torch.Tensor]) -> nn.Module:
    layers = nn.ModuleDict({"first": nn.Linear(3, 8), "last": nn.Linear(8, 1)})
    layers.load_state_dict(state)
    return layers


def test_the_number_of_threads_does_not_matter(tool: Tool, coded: Coded) -> None:
    found = [evaluate(tool, coded, env={"OMP_NUM_THREADS": str(count)}) for count in (1, 2)]
    assert len(coded.folders()) == 1
    assert found[0].json()["provenance"] == found[1].json()["provenance"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_posterior_serves_with_either_dtype(tool: Tool, coded: Coded, dtype: str) -> None:
    evaluate(tool, coded).json()
    assert predict(tool, coded, coded.posterior, "--dtype", dtype).code == 0


def test_an_exported_graph_is_known_by_what_it_computes(tool: Tool, project: Project) -> None:
    def export(act: nn.Module) -> None:
        net = nn.Sequential(project.model[0], act, project.model[2])
        shapes = ({0: torch.export.Dim("rows", min=1)},)
        torch.export.save(torch.export.export(net, (torch.zeros(2, 3),), dynamic_shapes=shapes), folder / "net.pt2")

    folder = project.folder
    export(nn.Tanh())
    project.use(model={"build": {"exported": "net.pt2"}})
    assert tool("evaluate", "--k", 5, cwd=folder).code == 0
    first = hashlib.sha256((folder / "net.pt2").read_bytes()).hexdigest()
    program = torch.export.load(folder / "net.pt2")
    torch.export.save(program, folder / "net.pt2", extra_files={"note": "saved again"})
    assert hashlib.sha256((folder / "net.pt2").read_bytes()).hexdigest() != first
    assert "reusing indices-gradient-k5" in tool("evaluate", "--k", 5, cwd=folder).err
    (posterior,) = folder.glob(".sublaplace/*/posterior-gradient-k5.safetensors")
    export(nn.ReLU())
    assert "reusing" not in tool("evaluate", "--k", 5, cwd=folder).err
    refused(tool("evaluate", "--posterior", posterior, cwd=folder), "but the network gives other")


def test_a_network_that_refuses_made_up_rows_is_known_by_its_files(tool: Tool, coded: Coded) -> None:
    known = [repr(float(value)) for value in coded.x[:, 0]]
    guard = f"known = torch.tensor([{', '.join(known)}]).to(x)\n        "
    guard += "assert torch.isin(x[:, 0].float(), known.float()).all()\n        return self"
    strict = CODE.replace("return self", guard)
    coded.code(strict)
    run = evaluate(tool, coded)
    assert run.code == 0, run.err
    assert predict(tool, coded, coded.posterior).code == 0
    coded.code(strict.replace("torch.tanh", "torch.relu"))
    refused(predict(tool, coded, coded.posterior), "the files of the network are not those that it was fitted with")
    assert "reusing" not in evaluate(tool, coded).err
    assert len(coded.folders()) == 2


def test_a_network_that_is_served_must_compute_the_same(tool: Tool, coded: Coded) -> None:
    evaluate(tool, coded).json()

    def served(code: str) -> Any:
        scope: dict[str, Any] = {}
        exec(code, scope)
        network = scope["Net"]()
        network.load_state_dict(torch.load(coded.folder / "m.pt", weights_only=True))
        return load_predictor(coded.posterior, network)(torch.from_numpy(coded.x[:2]))

    assert served(SAME["a local variable"])[1].shape == (2, 1)
    with pytest.raises(UserError, match=r"but the network gives other outputs"):
        served(OTHER["relu"])


def test_a_posterior_of_an_earlier_version(tool: Tool, coded: Coded) -> None:
    evaluate(tool, coded).json()
    path = forge(coded.posterior, {"probe": "absent"})
    refused(predict(tool, coded, path), "it was written by an older version", "sublaplace fit --recompute")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outputs": []}, "other outputs"),
        ({"gradients": [1.0]}, "other gradients"),
        ({"outputs": [1.0, None, 2.0]}, "probe.outputs.1"),
        ({"ranges": []}, "probe.ranges"),
        ({"ranges": [{"shape": [2**62], "low": 0.0, "high": 1.0}]}, "rows of another shape"),
        ({"ranges": [{"shape": [3], "low": 1e308, "high": -1e308}]}, "no finite outputs"),
        ({"ranges": [{"shape": [3], "low": "0", "high": 1.0}]}, "probe.ranges.0.low"),
    ],
)
def test_a_forged_probe(tool: Tool, coded: Coded, change: dict[str, Any], words: str) -> None:
    evaluate(tool, coded).json()
    known = metadata(coded.posterior)["probe"]
    refused(predict(tool, coded, forge(coded.posterior, {"probe": {**known, **change}})), words)


def test_what_the_code_prints_is_no_part_of_the_result(tool: Tool, coded: Coded) -> None:
    coded.code("print('importing')\n" + CODE.replace("super().__init__()", "super().__init__(); print('building')"))
    run = evaluate(tool, coded)
    assert run.json()["n_params"] == 41
    assert "importing\n" in run.err
    assert "building\n" in run.err


SELECTOR = "import torch\ndef first(problem, k):\n    return torch.arange(k)\n"


@pytest.mark.parametrize("built_by", ["arch", "code"])
def test_the_choice_of_a_changed_selector_is_never_reused(tool: Tool, tmp_path: Path, built_by: str) -> None:
    project = Coded(tmp_path / "p") if built_by == "code" else Project(tmp_path / "p")
    words = ("evaluate", "--method", "sel:first", "--k", 5, "--allow-code", "sel", "--allow-code", "net", "--json")
    (project.folder / "sel.py").write_text(SELECTOR)
    before = tool(*words, cwd=project.folder).json()
    (project.folder / "sel.py").write_text(SELECTOR.replace("torch.arange(k)", "torch.arange(k) + 10"))
    after = tool(*words, cwd=project.folder)
    assert "reusing jacobians-train" in after.err
    assert not [line for line in after.err.splitlines() if "reusing" in line and "sel" in line]
    fresh = tool(*words, "--recompute", cwd=project.folder).json()
    assert after.json()["rows"][0] == fresh["rows"][0] != before["rows"][0]
