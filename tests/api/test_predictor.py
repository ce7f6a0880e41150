"""Serving: a stored posterior and its network give what `evaluate --posterior` gives, and nothing else is needed."""

from __future__ import annotations

import copy
import csv
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.cli_tools import Project, kink_project, mlp, save
from safetensors.torch import load_file
from torch import nn

from sublaplace_cli import SublaplaceError, load_predictor, run_command

STANDARDISED = {"standardise": {"input": "from-train", "target": "from-train"}}


def fitted(project: Project, **options: str) -> Path:
    """The posterior of a project."""
    result = run_command("fit", spec=project.folder / "sublaplace.yaml", dtype="float64", **{"k": "20", **options})
    (path,) = (
        value for name, value in result["artifacts"].items() if name.startswith("posterior") and "full" not in name
    )
    return Path(path)


def expected(project: Project, posterior: Path, column: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and std of the test rows (M, C) as the command writes them."""
    target = project.folder / "predictions.csv"
    run_command(
        "evaluate",
        spec=project.folder / "sublaplace.yaml",
        posterior=posterior,
        predictions=target,
        dtype="float64",
        force=True,
    )
    with open(target) as file:
        lines = list(csv.DictReader(file))
    shape = (-1, project.outputs)
    values = [[float(line[name + column]) for line in lines] for name in ("mean", "std")]
    return tuple(torch.tensor(own, dtype=torch.float64).reshape(shape) for own in values)  # type: ignore[return-value]


def rows_of_test(project: Project) -> torch.Tensor:
    return torch.from_numpy(project.x[22:])


@pytest.mark.parametrize("rescale", ["none", "scale", "hybrid"])
@pytest.mark.parametrize(("task", "outputs"), [("regression", 1), ("regression", 2), ("binary", 1), ("multiclass", 3)])
def test_the_numbers_of_the_command(tmp_path: Path, task: str, outputs: int, rescale: str) -> None:
    project = Project(tmp_path / "p", task, outputs)
    path = fitted(project, rescale=rescale)
    mean, std = load_predictor(path, project.model.double())(rows_of_test(project))
    for found, truth in zip((mean, std), expected(project, path, ""), strict=True):
        assert found.shape == truth.shape
        assert torch.allclose(found, truth, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("prior_precision", [1.0, 1e-9], ids=["well-conditioned", "ill-conditioned"])
@pytest.mark.parametrize("k", ["10", "40"], ids=["primal", "dual"])
def test_both_forms(tmp_path: Path, k: str, prior_precision: float) -> None:
    project = Project(tmp_path / "p").use(posterior={"prior_precision": prior_precision})
    path = fitted(project, k=k)
    mean, std = load_predictor(path, project.model.double())(rows_of_test(project))
    truth = expected(project, path, "")
    assert torch.allclose(mean, truth[0], rtol=1e-12)
    assert torch.allclose(std, truth[1], rtol=1e-9)


@pytest.mark.parametrize("method", ["gradient", "greedy", "last-k", "neural-linear", "names:*bias"])
def test_every_kind_of_subnetwork(tmp_path: Path, method: str) -> None:
    project = Project(tmp_path / "p", outputs=2)
    k = {} if ":" in method or method == "neural-linear" else {"k": "25"}
    options = {"method": method, **k}
    result = run_command("fit", spec=project.folder / "sublaplace.yaml", dtype="float64", **options)
    (path,) = (
        value for name, value in result["artifacts"].items() if name.startswith("posterior") and "full" not in name
    )
    mean, std = load_predictor(path, project.model.double())(rows_of_test(project))
    truth = expected(project, Path(path), "")
    assert torch.allclose(mean, truth[0], rtol=1e-12)
    assert torch.allclose(std, truth[1], rtol=1e-12, atol=1e-14)


def test_standardised_data_come_and_go_in_their_own_units(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    project.use(data={**project.spec["data"], **STANDARDISED})
    path = fitted(project)
    mean, std = load_predictor(path, project.model.double())(rows_of_test(project))
    truth = expected(project, path, "_original")
    assert torch.allclose(mean, truth[0], rtol=1e-12)
    assert torch.allclose(std, truth[1], rtol=1e-12)
    assert not torch.allclose(mean, expected(project, path, "")[0])


def test_transforms_of_the_spec_are_applied(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    project.npz()
    transforms = [{"scale": 0.5}, {"normalise": {"mean": [0.1, 0.2, 0.3], "std": [1.0, 2.0, 3.0], "axis": 0}}]
    project.use(data={**project.spec["data"], "transforms": transforms})
    path = fitted(project)
    raw = torch.from_numpy(project.x.astype(np.float32)[22:])
    mean, std = load_predictor(path, project.model.double())(raw)
    truth = expected(project, path, "")
    assert torch.allclose(mean, truth[0], rtol=1e-12)
    assert torch.allclose(std, truth[1], rtol=1e-12)


def test_one_row_is_a_batch_of_one(tmp_path: Path) -> None:
    project = Project(tmp_path / "p", outputs=2)
    predict = load_predictor(fitted(project), project.model.double())
    mean, std = predict(rows_of_test(project))
    one_mean, one_std = predict(rows_of_test(project)[3])
    assert one_mean.shape == one_std.shape == (2,)
    assert torch.allclose(one_mean, mean[3], rtol=1e-12)
    assert torch.allclose(one_std, std[3], rtol=1e-12)
    assert all(
        torch.equal(a, b) for a, b in zip(predict(project.x[25]), predict(rows_of_test(project)[3]), strict=True)
    )


def test_many_rows_are_those_rows_one_by_one(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    predict = load_predictor(fitted(project), project.model.double())
    x = torch.randn(600, 3, dtype=torch.float64)
    mean, std = predict(x)
    few = torch.tensor([0, 255, 256, 511, 512, 599])
    for i in few.tolist():
        one_mean, one_std = predict(x[i])
        assert torch.allclose(mean[i], one_mean, rtol=1e-12)
        assert torch.allclose(std[i], one_std, rtol=1e-12)


def test_it_needs_neither_spec_nor_data_nor_folder(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    alone = tmp_path / "elsewhere.safetensors"
    os.replace(fitted(project), alone)
    for path in project.folder.rglob("*"):
        if path.is_file():
            path.unlink()
    mean, std = load_predictor(alone, project.model)(project.x[22:])
    assert bool((std > 0).all())
    assert torch.allclose(mean, project.model(torch.from_numpy(project.x[22:]).float()).double(), atol=1e-6)


def test_other_weights_and_other_networks_are_refused(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    path = fitted(project)
    with torch.no_grad():
        project.model[0].weight[0, 0] += 1e-3
    with pytest.raises(SublaplaceError, match="fitted for other weights"):
        load_predictor(path, project.model)
    with pytest.raises(SublaplaceError, match="parameter table"):
        load_predictor(path, mlp([3, 9, 1]))


def test_other_buffers_are_refused_too(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    project = Project(folder)
    (folder / "nets.py").write_text(
        "from torch import nn\ndef make():\n"
        "    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))\n"
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).eval()
    save(model, folder / "model.safetensors")
    project.use(model={"build": {"import": "nets:make"}, "weights": {"path": "model.safetensors"}})
    path = fitted(project, allow_code=("nets",))  # type: ignore[arg-type]
    load_predictor(path, model)
    model[1].running_mean += 1.0
    with pytest.raises(SublaplaceError, match="fitted for other weights"):
        load_predictor(path, model)


def test_a_network_in_another_dtype_or_in_training_mode_serves_as_well(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    path = fitted(project)
    single, double = load_predictor(path, project.model.float().train()), None
    x = rows_of_test(project)
    found = single(x)
    double = load_predictor(path, project.model.double())(x)
    assert torch.allclose(found[1], double[1], rtol=1e-4)
    assert project.model.training, "the caller's network is left alone"


def test_wrong_shapes_are_explained(tmp_path: Path) -> None:
    predict = load_predictor(fitted(project := Project(tmp_path / "p")), project.model)
    for x in (torch.zeros(4), torch.zeros(2, 4), torch.zeros(0, 3), torch.zeros(2, 2, 3)):
        with pytest.raises(SublaplaceError, match=r"the input has the shape .* expected \(3,\) or \(rows, 3\)"):
            predict(x)


def test_rows_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    predict = load_predictor(fitted(project := Project(tmp_path / "p")), project.model)
    predict(torch.zeros(2, 3))
    with pytest.raises(SublaplaceError, match="not finite"):
        predict(torch.tensor([[1.0, float("nan"), 0.0]]))


def test_the_full_posterior_and_other_files_are_refused(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    result = run_command("fit", spec=project.folder / "sublaplace.yaml", method="full")
    (path,) = (value for name, value in result["artifacts"].items() if name.startswith("posterior"))
    with pytest.raises(SublaplaceError, match="cannot predict without its training rows"):
        load_predictor(path, project.model)
    with pytest.raises(SublaplaceError, match="no such file"):
        load_predictor(tmp_path / "nothing.safetensors", project.model)
    with pytest.raises(SublaplaceError, match="sublaplace"):
        load_predictor(project.folder / "model.safetensors", project.model)


def test_many_threads_get_the_right_numbers(tmp_path: Path) -> None:
    project = Project(tmp_path / "p", outputs=2)
    predict = load_predictor(fitted(project), project.model.double())
    rows = [torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    alone = [predict(x) for x in rows]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(25):
            project.model(rows[i])  # the caller's own network may run at the same time
            if not all(torch.equal(a, b) for a, b in zip(predict(rows[i]), alone[i], strict=True)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not project.model[0]._forward_hooks, "no hook is left in the caller's network"


@pytest.mark.parametrize("rescale", ["none", "hybrid"])
def test_rows_at_a_kink_are_those_of_float64(tmp_path: Path, rescale: str) -> None:
    """A float32 network serves the numbers of a float64 one, alone and in a batch."""
    project = kink_project(tmp_path / "p")
    path = fitted(project, k="7", rescale=rescale)
    model = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    model.load_state_dict(load_file(project.folder / "model.safetensors"))
    x = torch.tensor(np.loadtxt(project.folder / "data.csv", delimiter=",", skiprows=1)[:, :1])
    exact, predict = load_predictor(path, copy.deepcopy(model).double()), load_predictor(path, model)
    for rows in (x, x[12], x[5]):
        for found, truth in zip(predict(rows), exact(rows), strict=True):
            assert torch.allclose(found.double(), truth.double(), rtol=1e-4)
