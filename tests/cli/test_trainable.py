"""`model.trainable`: θ is what the globs name, for every kind of network, as if the code had frozen the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli.cli_tools import Project, core, refused, save
from torch import nn

from sublaplace_cli import load_predictor, run_command
from sublaplace_cli.core.jacobian.capture import prepare_capture
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.network.trainable import chosen_parameters, train_only
from sublaplace_cli.errors import UserError

CODE = """
from torch import nn
def make(frozen=()):
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    for name in frozen:
        net.get_parameter(name).requires_grad_(False)
    return net
"""
BODY = ["0.weight", "0.bias"]


def evaluated(project: Project, **options: Any) -> dict[str, Any]:
    spec = project.folder / "sublaplace.yaml"
    return run_command("evaluate", spec=spec, method="gradient", k="5", dtype="float64", allow_code=["net"], **options)


def build(project: Project, how: str, frozen: list[str]) -> dict[str, Any]:
    if how == "arch":
        return project.spec["model"]["build"]
    if how == "import":
        (project.folder / "net.py").write_text(CODE)
        return {"import": "net:make", "args": {"frozen": frozen}}
    program = torch.export.export(
        project.model, (torch.zeros(2, 3),), dynamic_shapes=({0: torch.export.Dim("rows", min=1)},)
    )
    torch.export.save(program, project.folder / "net.pt2")
    return {"exported": "net.pt2"}


@pytest.mark.parametrize("how", ["arch", "import", "exported"])
@pytest.mark.parametrize("globs", ["2.*", ["2.weight", "*.bias"], ["0.bias"]])
def test_the_same_as_freezing_in_code(project: Project, how: str, globs: str | list[str]) -> None:
    layout = Layout.of(project.model)
    names = [globs] if isinstance(globs, str) else globs
    chosen = {part.name for name in names for part in layout.matching(name)}
    frozen = [part.name for part in layout.parameters if part.name not in chosen]
    weights = project.spec["model"]["weights"]
    in_code = project.use(model={"build": build(project, "import", frozen), "weights": weights})
    truth = evaluated(in_code)
    found = evaluated(in_code.use(model={"build": build(project, how, []), "weights": weights, "trainable": globs}))
    assert found["n_params"] == truth["n_params"] == sum(p.size for p in layout.parameters if p.name in chosen)
    for own, expected in zip(found["rows"], truth["rows"], strict=True):
        for metric, value in expected.items():
            if isinstance(value, float):
                assert own[metric] == pytest.approx(value, rel=1e-9), metric


def test_a_glob_unfreezes_what_the_code_froze(project: Project) -> None:
    weights = project.spec["model"]["weights"]
    everything = evaluated(project.use(model={"build": build(project, "import", []), "weights": weights}))
    again = evaluated(
        project.use(model={"build": build(project, "import", BODY), "weights": weights, "trainable": ["*"]})
    )
    assert again["n_params"] == everything["n_params"] == project.size
    assert [row["mean_std"] for row in again["rows"]] == [row["mean_std"] for row in everything["rows"]]


def test_only_a_spec_that_sets_it_is_another_run(tool: Any, project: Project) -> None:
    def folders() -> set[str]:
        assert tool("evaluate", "--k", 5, cwd=project.folder).code == 0
        return {path.name for path in (project.folder / ".sublaplace").iterdir()}

    plain, model = folders(), project.spec["model"]
    project.use(model={**model, "trainable": None})
    assert folders() == plain
    project.use(model={**model, "trainable": "2.*"})
    assert len(folders()) == 2
    project.use(model={**model, "trainable": ["2.*"]})
    assert len(folders()) == 2


def test_a_glob_without_a_parameter(tool: Any, project: Project) -> None:
    project.use(model={**project.spec["model"], "trainable": ["2.*", "0.wieght"]})
    run = tool("evaluate", "--k", 5, cwd=project.folder)
    refused(run, "model.trainable: '0.wieght' matches no parameter", "close names: 0.weight, ")
    for wrong, words in (([], "an empty list"), (3, "expected a text, got the number 3"), ([""], "an empty one")):
        project.use(model={**project.spec["model"], "trainable": wrong})
        refused(tool("evaluate", "--k", 5, cwd=project.folder), "model.trainable", words)


def test_weights_of_a_chosen_parameter_are_needed(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    torch.save({k: v for k, v in project.model.state_dict().items() if k not in BODY}, project.folder / "m.pt")
    model = {"build": build(project, "import", BODY), "weights": {"path": "m.pt", "strict": False}}
    assert evaluated(project.use(model=model))["n_params"] == 9
    with pytest.raises(UserError, match=r"missing: 0.weight \(8, 3\)"):
        evaluated(project.use(model={**model, "trainable": "*.weight"}))


class Tied(nn.Module):
    """One weight under two names, a frozen layer, a buffer, and a parameter of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(2)
        self.count = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.norm(self.b(self.a(x))))


@pytest.mark.parametrize("glob", ["a.weight", "b.weight", "?.weight"])
def test_a_tied_parameter_counts_once(glob: str) -> None:
    model = Tied().eval()
    train_only(model, chosen_parameters(model, [glob], "model.trainable"))
    expected = ["a.weight", *(["c.weight"] if "?" in glob else [])]
    assert [part.name for part in Layout.of(model).parameters] == expected


def test_buffers_and_integers_are_never_trained() -> None:
    model = Tied().eval()
    train_only(model, chosen_parameters(model, ["norm.*"], "model.trainable"))
    assert [part.name for part in Layout.of(model).parameters] == ["norm.weight", "norm.bias"]
    with pytest.raises(UserError, match=r"'norm.running_mean' matches no parameter"):
        chosen_parameters(model, ["norm.running_mean"], "model.trainable")
    with pytest.raises(UserError, match=r"'count' holds torch.int64 values"):
        chosen_parameters(model, ["c*"], "model.trainable")


def test_a_frozen_body_costs_no_memory_and_no_backward_pass() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())))
    model, x = nn.Sequential(body, nn.Linear(64, 3)).eval(), torch.randn(8, 64)
    whole = prepare_capture(model, Layout.of(model), x, 2**30)
    train_only(model, chosen_parameters(model, ["1.*"], "model.trainable"))
    head = prepare_capture(model, Layout.of(model), x, 2**30)
    assert [layer.name for layer in head.layers] == ["1"]
    assert (head.rest, len(head.templates)) == ((), 1)
    recorded: list[bool] = []
    for layer in body:
        layer.register_forward_hook(lambda _m, _args, out: recorded.append(out.requires_grad))
    assert len(head(x).blocks) == 1
    assert recorded == [False] * len(body)
    stored = [sum(t.numel() for block in one.templates for t in block.tensors().values()) for one in (head, whole)]
    assert stored[0] == 64 + 3 * 3  # the layer's inputs, and the gradients of its outputs
    assert stored[1] > 6 * stored[0]
    assert head.row_bytes < whole.row_bytes


@pytest.mark.parametrize("globs", ["2.*", "0.*"])
def test_a_posterior_serves_with_a_network_that_freezes_nothing(tmp_path: Path, globs: str) -> None:
    project = Project(tmp_path / "p")
    project.use(model={**project.spec["model"], "trainable": globs})
    spec = project.folder / "sublaplace.yaml"
    (path,) = (
        value
        for name, value in run_command("fit", spec=spec, k="5", dtype="float64")["artifacts"].items()
        if name.startswith("posterior")
    )
    target = project.folder / "predictions.npz.safetensors"
    run_command("evaluate", spec=spec, posterior=path, predictions=target, dtype="float64")
    from safetensors.torch import load_file

    truth, model = load_file(target), project.model.double()
    mean, std = load_predictor(path, model)(torch.from_numpy(project.x[22:]))
    assert torch.allclose(mean, truth["mean"], rtol=1e-12)
    assert torch.allclose(std, truth["std"], rtol=1e-12)
    assert all(parameter.requires_grad for parameter in model.parameters())  # the caller's network is left alone


def test_the_oracle_does_not_know_it(tool: Any, project: Project) -> None:
    other = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    save(other, project.folder / "oracle.safetensors")
    args = {"in": 3, "hidden": [5], "out": 1, "act": "tanh"}
    oracle = {"build": {"arch": "mlp", "args": args}, "weights": {"path": "oracle.safetensors"}}
    glob = {"trainable": "4.*"}
    deep = {"build": {"arch": "mlp", "args": {**args, "hidden": [8, 4]}}, "weights": {"path": "deep.safetensors"}}
    save(
        nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1)),
        project.folder / "deep.safetensors",
    )
    plain = tool("evaluate", "--k", 5, "--json", cwd=project.use(model={**deep, **glob}).folder).json()
    run = tool("evaluate", "--k", 5, "--json", cwd=project.use(oracle=oracle).folder)
    assert run.json()["n_params"] == plain["n_params"] == 5
    assert core(run.json())["rows"] != core(plain)["rows"]  # coverage of the oracle
