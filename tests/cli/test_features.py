"""`sketch` and `gradient+sketch`: the numbers of the dense formula, and everything that a sub-network can do."""

from __future__ import annotations

from pathlib import Path

import pytest
import reference
import torch
from cli.cli_tools import Project, Tool, refused
from core.features.dense_maps import features_of
from safetensors.torch import load_file

from sublaplace_cli import load_predictor
from sublaplace_cli.core.features import FeatureMap
from sublaplace_cli.core.features.beside import Beside
from sublaplace_cli.core.features.sketch import Sketch
from sublaplace_cli.core.features.subset import Subset
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.files.artifacts.run_folder import file_stem

PRIOR = 0.7
TASKS = pytest.mark.parametrize(("task", "outputs"), [("regression", 1), ("binary", 1), ("multiclass", 3)])
METHODS = ("sketch", "gradient+sketch")


def made(folder: Path, task: str = "regression", outputs: int = 1) -> Project:
    return Project(folder, task, outputs).use(posterior={"prior_precision": PRIOR})


class Dense:
    """Covariances and ipv of any feature map, by the formula."""

    def __init__(self, project: Project) -> None:
        x, y = project.tensors()
        model = project.model.double()
        f, J = reference.jacobian(model, x[:22], 22)
        _, self.J_test = reference.jacobian(model, x[22:], 8)
        self.layout = Layout.from_shapes([(name, tuple(t.shape)) for name, t in model.named_parameters()])
        self.v = torch.full((self.layout.size,), PRIOR, dtype=torch.float64)
        self.sigma2 = max(float((y[:22] - f).square().mean()), 1e-3) if project.task == "regression" else None
        H = reference.output_hessian(project.kind, f, self.sigma2)
        self.score = reference.data_term(J, H).diagonal()
        self.A = torch.einsum("ncd,nck->ndk", torch.linalg.cholesky(H), J)

    def map_of(self, method: str, k: int, seed: int) -> FeatureMap:
        if method == "sketch":
            return Sketch(k, seed)
        chosen = reference.gradient_selection(self.score, self.v, k // 2)
        return Beside(Subset(torch.as_tensor(chosen)), Sketch(k - k // 2, seed))

    def __call__(self, method: str, k: int, seed: int = 0) -> tuple[torch.Tensor, float]:
        own = self.map_of(method, k, seed)
        A, g = (features_of(own, self.layout, self.v, J) for J in (self.A, self.J_test))
        data = torch.einsum("ndk,ndl->kl", A, A)
        inverse = torch.linalg.inv(data + torch.eye(k, dtype=torch.float64))
        ipv = (self.sigma2 or 1.0) / len(A) * float((inverse @ data).trace())
        return torch.einsum("nck,kl,ndl->ncd", g, inverse, g), ipv


@TASKS
def test_numbers_are_those_of_the_dense_formula(tool: Tool, tmp_path: Path, task: str, outputs: int) -> None:
    project = made(tmp_path / "p", task, outputs)
    words = ["--method", ",".join(METHODS), "--k", "6,30", "--seed", "3", "--dtype", "float64", "--json"]
    run = tool("evaluate", *words, cwd=project.folder).json()
    dense = Dense(project)
    assert [(row["method"], row["k"]) for row in run["rows"]] == [(m, k) for m in METHODS for k in (6, 30)]
    for row in run["rows"]:
        covariance, ipv = dense(row["method"], row["k"], 3)
        stored = load_file(run["artifacts"][file_stem("predictions", row["method"], row["k"])])
        assert torch.allclose(stored["covariance"], covariance, rtol=1e-8, atol=1e-10)
        assert row["ipv"] == pytest.approx(ipv, rel=1e-8)
        assert row["mean_std"] == pytest.approx(float(covariance.diagonal(dim1=1, dim2=2).sqrt().mean()), rel=1e-8)


@TASKS
@pytest.mark.parametrize("words", [["--k", "8"], ["--k", "30"], ["--k", "8", "--rescale", "hybrid"]], ids=" ".join)
@pytest.mark.parametrize("method", METHODS)
def test_a_posterior_predicts_and_serves_from_its_file(
    tool: Tool, tmp_path: Path, task: str, outputs: int, words: list[str], method: str
) -> None:
    project = made(tmp_path / "p", task, outputs)
    more = ["--method", method, *words, "--seed", "4", "--dtype", "float64", "--json"]
    run = tool("evaluate", *more, cwd=project.folder).json()
    (expected,) = run["rows"]
    (file,) = [path for name, path in run["artifacts"].items() if name.startswith("posterior-") and "full" not in name]
    stored = load_file(file)
    assert "prior" not in stored
    assert ("indices" in stored) == (method != "sketch")  # never the map itself
    alone = tool("evaluate", "--posterior", file, "--dtype", "float64", "--json", cwd=project.folder).json()["rows"][0]
    assert (alone["method"], alone["k"]) == (method, expected["k"])
    for key in ("mean_std", "nll", "ipv", "rescale", "remainder"):
        assert alone[key] == pytest.approx(expected[key], rel=1e-8), key
    predict = load_predictor(file, project.model.double())
    x, _ = project.tensors()
    _, std = predict(x[22:])
    start = file_stem("predictions", method, expected["k"])
    (written,) = [path for name, path in run["artifacts"].items() if name.startswith(start)]
    assert torch.allclose(std.reshape(8, -1), load_file(written)["std"], rtol=1e-8, atol=1e-10)


def test_samples_have_the_covariance_of_the_posterior(tool: Tool, tmp_path: Path) -> None:
    project = made(tmp_path / "p")
    words = ["--method", "sketch", "--k", "12", "--samples", "20000", "--predictions", "draws.safetensors", "--json"]
    run = tool("evaluate", *words, "--dtype", "float64", cwd=project.folder).json()
    drawn = load_file(project.folder / "draws.safetensors")["samples"].double()
    std = load_file(run["artifacts"]["predictions-sketch-k12"])["std"]
    assert torch.allclose(drawn.std(0), std, rtol=0.05)


def test_seeds_are_a_sweep_with_standard_errors(tool: Tool, tmp_path: Path) -> None:
    project = made(tmp_path / "p")
    words = ["--method", "sketch", "--k", "10", "--seed", "0", "--seed", "1", "--seed", "2", "--json"]
    run = tool("evaluate", *words, "--dtype", "float64", cwd=project.folder).json()
    dense = Dense(project)
    each = [float(dense("sketch", 10, seed)[0].diagonal(dim1=1, dim2=2).sqrt().mean()) for seed in range(3)]
    (mean,) = run["mean"]
    assert mean["n"] == 3
    assert mean["mean_std"] == pytest.approx(sum(each) / 3, rel=1e-8)
    assert mean["mean_std_se"] == pytest.approx(float(torch.tensor(each).double().std()) / 3**0.5, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_auto_takes_the_first_k_of_a_doubling_list_that_retains_enough(tool: Tool, tmp_path: Path, method: str) -> None:
    project = made(tmp_path / "p")
    words = ["--method", method, "--k", "auto", "--retain", "0.7", "--json", "--dtype", "float64"]
    run = tool("evaluate", *words, cwd=project.folder)
    (row,) = run.json()["rows"]
    assert row["retained"] >= 0.7 * (1 - 1e-9)
    assert f"{method}: k = {row['k']} retains" in run.err


def test_many_k_at_once_are_each_k_alone_to_the_bit(tool: Tool, tmp_path: Path) -> None:
    project = made(tmp_path / "together")
    together = tool("evaluate", "--method", "sketch", "--k", "5,9,20", "--json", cwd=project.folder).json()["rows"]
    for row in together:
        own = made(tmp_path / str(row["k"]))
        (alone,) = tool("evaluate", "--method", "sketch", "--k", row["k"], "--json", cwd=own.folder).json()["rows"]
        assert {key: alone[key] for key in ("mean_std", "w2", "nll", "ipv")} == {
            key: row[key] for key in ("mean_std", "w2", "nll", "ipv")
        }


def test_the_alarm_of_theorem_1_is_off_and_a_share_above_1_is_explained(tool: Tool, tmp_path: Path) -> None:
    project = made(tmp_path / "p").use(posterior={"prior_precision": 1e4})  # then the ipv is linear in the kernel
    words = ["--method", "sketch", "--k", "8", *[w for seed in range(12) for w in ("--seed", seed)], "--json"]
    run = tool("evaluate", *words, cwd=project.folder).json()
    above = [row for row in run["rows"] if row["retained"] > 1]
    assert above
    assert all("no sub-network" in row["why"]["retained"] for row in above)


def test_select_says_what_to_use_instead(tool: Tool, tmp_path: Path) -> None:
    project = made(tmp_path / "p")
    refused(tool("select", "--method", "sketch", "--k", "5", cwd=project.folder), "'sketch' makes features", "fit it")
    refused(tool("evaluate", "--method", "gradient+sketch", "--k", "1", cwd=project.folder), "k of at least 2")
