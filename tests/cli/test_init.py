"""`sublaplace init`: from a checkpoint and data to a spec that works."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.cli_tools import Tool
from safetensors.torch import save_file
from torch import nn

from sublaplace_cli.files.spec.loading import load_spec

N_ROWS, N_COLUMNS = 120, 4


class Net(nn.Module):
    """Names of layers that are not those of an `mlp`."""

    def __init__(self, n_outputs: int = 1) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(N_COLUMNS, 16), nn.Linear(16, 8), nn.Linear(8, n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class Trained:
    """A network that fits made data, whose columns have different scales."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        generator = np.random.default_rng(0)
        self.X = generator.normal(size=(N_ROWS, N_COLUMNS)) * [1.0, 50.0, 0.1, 5.0] + [0.0, 200.0, 1.0, 0.0]
        cut = round(0.8 * N_ROWS)
        self.standardised = (self.X - self.X[:cut].mean(0)) / self.X[:cut].std(0)
        Z = torch.tensor(self.standardised, dtype=torch.float32)
        self.y = (3 * torch.tanh(2 * Z[:, 0]) * Z[:, 1] + Z[:, 2]).numpy()
        self.net = Net()
        optimiser = torch.optim.Adam(self.net.parameters(), 0.02)
        for _ in range(300):
            optimiser.zero_grad()
            nn.functional.mse_loss(self.net(Z)[:, 0], torch.tensor(self.y)).backward()
            optimiser.step()


def under(prefix: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


@pytest.fixture(scope="module")
def trained():
    return Trained()


@pytest.fixture
def tool(tmp_path):
    return Tool(tmp_path)


def write_csv(path: Path, columns: dict[str, object]) -> None:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")


def table_of(trained: Trained) -> dict[str, object]:
    return {f"x{i}": trained.X[:, i] for i in range(N_COLUMNS)} | {"target": trained.y}


def started(tool, folder, *words, code=0):
    done = tool("init", *words, cwd=folder)
    assert done.code == code, done.err
    return done


def evaluated(tool, folder, *words):
    done = tool("evaluate", "--method", "gradient", "--k", "50", "--json", *words, cwd=folder)
    assert done.code == 0, done.err
    return json.loads(done.out)


def spec_in(folder):
    return load_spec(folder / "sublaplace.yaml").spec


def test_an_mlp_with_own_names_and_a_csv(tool, tmp_path, trained):
    torch.save(trained.net.state_dict(), tmp_path / "model.pt")
    write_csv(tmp_path / "rows.csv", table_of(trained))
    done = started(tool, tmp_path, "model.pt", "rows.csv")
    spec = spec_in(tmp_path)
    assert spec.task == "regression"
    assert spec.model.build.args == {"in": 4, "hidden": [16, 8], "out": 1, "act": "tanh"}
    assert spec.model.weights.rename == {"fc1.": "0.", "fc2.": "2.", "head.": "4."}
    assert (spec.data.standardise.input, spec.data.standardise.target) == ("from-train", "none")
    assert "next: sublaplace evaluate --method gradient --k 112" in done.out
    result = evaluated(tool, tmp_path)
    assert result["rows"][0]["rmse"] < 0.5 * float(np.std(trained.y))


def test_an_mlp_and_an_npz_with_both_splits(tool, tmp_path, trained):
    save_file(trained.net.state_dict(), tmp_path / "model.safetensors")
    X, y = trained.standardised.astype(np.float32), trained.y
    np.savez(tmp_path / "rows.npz", x_train=X[:90], y_train=y[:90], x_test=X[90:], y_test=y[90:])
    started(tool, tmp_path, "model.safetensors", "rows.npz")
    assert spec_in(tmp_path).data.standardise.input == "none"
    assert evaluated(tool, tmp_path)["n_train"] == 90


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.ckpt", lambda state: {"epoch": 3, "state_dict": {f"model.{k}": v for k, v in state.items()}}),
        ("model.pt", lambda state: {f"_orig_mod.{k}": v for k, v in state.items()}),
        ("model.pth", lambda state: {"model_state_dict": {f"module.{k}": v for k, v in state.items()}}),
        ("loss.ckpt", lambda state: {"state_dict": {**state, "loss_fn.pos_weight": torch.ones(1)}}),
        ("own.ckpt", lambda state: {"state_dict": {**under("model.", state), "val_metric.total": torch.ones(())}}),
        ("other.ckpt", lambda state: {"state_dict": {**under("regressor.", state), "criterion.weight": torch.ones(2)}}),
    ],
    ids=["lightning", "torch-compile", "data-parallel", "with-loss", "with-metric", "other-prefix"],
)
def test_checkpoints_of_other_tools(tool, tmp_path, trained, name, content):
    torch.save(content(trained.net.state_dict()), tmp_path / name)
    write_csv(tmp_path / "rows.csv", table_of(trained))
    started(tool, tmp_path, name, "rows.csv")
    assert evaluated(tool, tmp_path)["rows"][0]["rmse"] < 0.5 * float(np.std(trained.y))


def test_an_exported_network_and_an_npz(tool, tmp_path, trained):
    X = torch.tensor(trained.X, dtype=torch.float32)
    program = torch.export.export(trained.net.eval(), (X,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "model.pt2")
    np.savez(tmp_path / "rows.npz", x=trained.X.astype(np.float32), y=trained.y)
    started(tool, tmp_path, "model.pt2", "rows.npz")
    spec = spec_in(tmp_path)
    assert spec.model.build.exported == "model.pt2"
    assert spec.data.standardise.input == "from-train"
    evaluated(tool, tmp_path)


def test_files_are_found_without_being_named(tool, tmp_path, trained):
    torch.save(trained.net.state_dict(), tmp_path / "model.pt")
    write_csv(tmp_path / "rows.csv", table_of(trained))
    started(tool, tmp_path)
    assert spec_in(tmp_path).data.path == "rows.csv"


def test_without_files_it_is_a_template(tool, tmp_path):
    done = started(tool, tmp_path)
    assert "check" in done.out
    assert spec_in(tmp_path).task == "regression"
    assert (tmp_path / "sublaplace.yaml").read_text().count("TODO") >= 4


def test_an_existing_spec_is_left_alone(tool, tmp_path):
    (tmp_path / "sublaplace.yaml").write_text("mine")
    done = started(tool, tmp_path, code=2)
    assert "exists already" in done.err
    assert (tmp_path / "sublaplace.yaml").read_text() == "mine"


def test_a_network_of_its_own_code_gets_a_stub(tool, tmp_path, trained):
    torch.save(nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 1)).state_dict(), tmp_path / "model.pt")
    write_csv(tmp_path / "rows.csv", table_of(trained))
    done = started(tool, tmp_path, "model.pt", "rows.csv")
    assert "--allow-code my_network" in done.out
    assert spec_in(tmp_path).model.build.import_ == "my_network:make_network"
    stub = tmp_path / "my_network.py"
    assert "(2, 1, 3)" in stub.read_text()
    stub.write_text(
        "from torch import nn\n\ndef make_network():\n"
        "    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 1))\n"
    )
    failed = tool("evaluate", "--k", "5", "--allow-code", "my_network", cwd=tmp_path)
    assert failed.code == 2  # the names of the layers differ, and the message says so
    assert "1.weight" in failed.err


def test_classes_are_recognised_by_the_outputs(tool, tmp_path, trained):
    torch.save(Net(3).state_dict(), tmp_path / "model.pt")
    labels = np.arange(N_ROWS) % 3
    np.savez(tmp_path / "rows.npz", x=trained.X, y=labels)
    started(tool, tmp_path, "model.pt", "rows.npz", "--activation", "tanh")
    assert spec_in(tmp_path).task == "multiclass"
    evaluated(tool, tmp_path)


@pytest.mark.parametrize("wanted", [None, "tanh"])
@pytest.mark.parametrize("readable", [True, False])
def test_the_activation_is_written_as_it_is_shown(tool, tmp_path, trained, wanted, readable):
    """Also where the network fits no rows, or none can be tried, and where the user says it."""
    torch.save(Net(3).state_dict(), tmp_path / "model.pt")
    y = np.arange(N_ROWS) % 3
    np.savez(tmp_path / "rows.npz", x=trained.X, y=y if readable else np.array(["a", "b", "c"])[y])
    words = [] if wanted is None else ["--activation", wanted]
    found = json.loads(started(tool, tmp_path, "model.pt", "rows.npz", "--json", *words).out)["findings"]
    shown = {finding["topic"]: finding["value"] for finding in found}
    written = spec_in(tmp_path).model.build.args["act"]
    assert shown["activation"] == written == (wanted or "relu")


def test_rows_that_are_sorted_by_their_target_alternate(tool, tmp_path, trained):
    torch.save(Net(3).state_dict(), tmp_path / "model.pt")
    np.savez(tmp_path / "rows.npz", x=trained.X, y=np.sort(np.arange(N_ROWS) % 3))
    started(tool, tmp_path, "model.pt", "rows.npz")
    splits = spec_in(tmp_path).data.splits
    assert (splits.train.rows, splits.test.rows) == ("0::2", "1::2")


def test_a_cifar_resnet_is_recognised(tool, tmp_path):
    from sublaplace_cli import cifar_resnet

    save_file(cifar_resnet(depth=20, out=10, shortcut="A").state_dict(), tmp_path / "model.safetensors")
    images = np.zeros((20, 32, 32, 3), np.uint8)
    np.savez(
        tmp_path / "rows.npz", x_train=images, y_train=np.arange(20) % 10, x_test=images, y_test=np.arange(20) % 10
    )
    started(tool, tmp_path, "model.safetensors", "rows.npz")
    spec = spec_in(tmp_path)
    assert spec.model.build.args == {"depth": 20, "out": 10, "shortcut": "A"}
    assert len(spec.data.transforms) == 2


def test_the_findings_as_json(tool, tmp_path, trained):
    torch.save(trained.net.state_dict(), tmp_path / "model.pt")
    write_csv(tmp_path / "rows.csv", table_of(trained))
    found = json.loads(started(tool, tmp_path, "model.pt", "rows.csv", "--json").out)
    assert {finding["topic"]: finding["certainty"] for finding in found["findings"]}["activation"] == "sure"
    assert found["files"] == ["sublaplace.yaml"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing.pt", "rows.csv"), "nothing.pt does not exist"),
        (("--task", "ranking"), "--task: found 'ranking'"),
        (("--activation", "rely"), "did you mean 'relu'"),
    ],
)
def test_wrong_usage(tool, tmp_path, words, message):
    assert message in started(tool, tmp_path, *words, code=2).err
    assert not (tmp_path / "sublaplace.yaml").exists()


def test_a_target_with_missing_values_is_refused(tool, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,target\n1,1,\n2,3,4\n5,6,7\n")
    assert "1 of the first 3 values of 'target' are missing" in started(tool, tmp_path, "rows.csv", code=2).err


def test_without_targets_the_task_is_a_guess(tool, tmp_path, trained):
    torch.save(trained.net.state_dict(), tmp_path / "model.pt")
    np.savez(tmp_path / "rows.npz", x=trained.X)
    assert "there are no targets" in started(tool, tmp_path, "model.pt", "rows.npz").out


def test_names_from_files_stay_text(tool, tmp_path):
    torch.save({"fc\n1.weight": torch.zeros(1, 2), "fc\n1.bias": torch.zeros(1)}, tmp_path / "model.pt")
    rows = "".join(f"{1.3 * i},{i % 7},{i % 5}.5\n" for i in range(30))
    (tmp_path / "rows.csv").write_text('"a: {b","\x1b[31mred","yes"\n' + rows)
    done = started(tool, tmp_path, "model.pt", "rows.csv")
    assert "\x1b" not in done.out
    spec = spec_in(tmp_path)
    assert spec.model.weights.rename == {"fc\n1.": "0."}
    assert spec.data.columns.target == "yes"


def test_columns_that_say_nothing_are_left_out(tool, tmp_path, trained):
    torch.save(trained.net.state_dict(), tmp_path / "model.pt")
    others = {"id": range(N_ROWS), "site": [7] * N_ROWS, "name": [f"row {i}" for i in range(N_ROWS)]}
    write_csv(tmp_path / "rows.csv", others | table_of(trained))
    started(tool, tmp_path, "model.pt", "rows.csv")
    assert spec_in(tmp_path).data.columns.exclude == ["id", "site", "name"]
    assert evaluated(tool, tmp_path)["rows"][0]["rmse"] < 0.5 * float(np.std(trained.y))
