"""What works: the four commands, formats, artifacts, methods, models and data of the contract."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.cli_tools import Project, Tool, call, contents, core, mlp, save, strict
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy import stats

Make = Callable[..., Project]
STANDARDISE = {"input": "from-train", "target": "from-train"}
FILES = {
    *("jacobians-train.safetensors", "jacobians-test.safetensors", "scores.safetensors", "evaluation.json"),
    *("indices-gradient-k5.safetensors", "posterior-gradient-k5.safetensors", "predictions-gradient-k5.safetensors"),
    *("posterior-full-k41.safetensors", "predictions-full-k41.safetensors", "predictions-norm.safetensors"),
}


def meta_of(path: Path) -> dict:
    with safe_open(path, framework="pt") as file:
        assert set(file.metadata()) == {"sublaplace"}
        text = file.metadata()["sublaplace"]
    meta = strict(text)
    assert text == json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False), "canonical JSON"
    return meta


def test_step_by_step_gives_the_same_as_evaluate_alone(tool: Tool, project: Project, tmp_path: Path) -> None:
    steps, alone = tmp_path / "steps", tmp_path / "alone"
    choice = ("--method", "gradient", "--k", 5)
    made = tool("jacobians", "--run-dir", steps, "--json", cwd=project.folder).json()
    assert set(made["artifacts"]) == {"jacobians-train", "jacobians-test", "scores"}
    assert made["schema"] == 1
    assert made["n_params"] == project.size
    made = tool("select", *choice, "--run-dir", steps, "--json", cwd=project.folder).json()
    assert Path(made["artifacts"]["indices-gradient-k5"]).is_file()
    fitted = tool("fit", *choice, "--run-dir", steps, "--json", cwd=project.folder)
    assert "reusing indices-gradient-k5" in fitted.err
    last = tool("evaluate", *choice, "--run-dir", steps, "--json", cwd=project.folder)
    assert "reusing posterior-gradient-k5" in last.err
    once = tool("evaluate", *choice, "--run-dir", alone, "--json", cwd=project.folder)
    assert core(last.json()) == core(once.json())
    assert last.json()["rows"][0]["ipv"] == fitted.json()["ipv"]

    artifacts = {name for name in contents(alone) if name.endswith((".safetensors", "evaluation.json"))}
    assert artifacts == FILES
    tensors = {name: digest for name, digest in contents(alone).items() if name.endswith(".safetensors")}
    assert tensors == {name: digest for name, digest in contents(steps).items() if name.endswith(".safetensors")}


def test_a_second_evaluate_reuses_everything(tool: Tool, project: Project) -> None:
    first = tool("evaluate", "--k", 5, "--json", cwd=project.folder)
    (folder,) = (project.folder / ".sublaplace").iterdir()
    assert (folder / ".gitignore").read_text() == "*\n"
    before = contents(folder)
    second = tool("evaluate", "--k", 5, "--json", cwd=project.folder)
    assert core(first.json()) == core(second.json())
    for name in ("predictions-gradient-k5", "predictions-full-k41", "predictions-norm", "scores", "jacobians-test"):
        assert second.err.count(f"reusing {name}\n") == 1
    assert contents(folder) == before
    quiet = tool("evaluate", "--k", 5, "--json", "-q", cwd=project.folder)
    assert quiet.err_but_sanity() == ""
    assert core(quiet.json()) == core(first.json())


def test_the_same_inputs_give_the_same_bytes(tool: Tool, project: Project, tmp_path: Path) -> None:
    choice = ("evaluate", "--method", "gradient,greedy,random", "--k", "3,7", "-q")
    for name in ("one", "two"):
        assert tool(*choice, "--run-dir", tmp_path / name, cwd=project.folder).code == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert call(*choice, "--run-dir", tmp_path / "three", cwd=project.folder).code == 0  # not through the fork server
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


def test_evaluation_json_is_the_result_without_seconds(tool: Tool, project: Project, tmp_path: Path) -> None:
    result = tool("evaluate", "--k", 5, "--run-dir", tmp_path / "r", "--json", cwd=project.folder).json()
    kept = strict((tmp_path / "r" / "evaluation.json").read_text())
    assert core(kept) == core(result)
    assert set(kept["artifacts"]) == set(result["artifacts"])
    assert "seconds" not in kept
    assert result["seconds"]
    assert set(result) >= {"schema", "task", "n_train", "n_test", "n_params", "n_outputs", "noise_variance", "gate"}
    assert (result["n_train"], result["n_test"], result["n_params"]) == (22, 8, 41)
    row = result["rows"][0]
    for key in ("accuracy", "ece", "brier", "coverage95"):
        assert row[key] is None
        assert row["why"][key]
    assert set(row["why"]) == {key for key, value in row.items() if value is None}
    for path in result["artifacts"].values():
        assert Path(path).is_file()


def test_every_artifact_says_what_it_is(tool: Tool, project: Project, tmp_path: Path) -> None:
    assert tool("evaluate", "--k", 5, "--run-dir", tmp_path / "r", cwd=project.folder).code == 0
    kinds = {}
    for path in (tmp_path / "r").glob("*.safetensors"):
        meta = meta_of(path)
        kinds[path.name.split("-")[0].removesuffix(".safetensors")] = meta["kind"]
        for key in ("schema", "tool", "torch", "device", "dtype", "seed", "spec", "spec_sha256"):
            assert key in meta, f"{path.name}: {key}"
        for key in ("weights_sha256", "data_sha256", "parameters", "inputs", "checksum"):
            assert key in meta, f"{path.name}: {key}"
        assert meta["parameters"][0] == ["0.weight", [8, 3], 0]
        assert meta["parameters"][-1] == ["2.bias", [1], 40]
        for entry in meta["tensors"].values():
            assert all(len(digest) == 64 for digest in entry["sha256"])
    assert kinds == {kind: kind for kind in ("jacobians", "scores", "indices", "posterior", "predictions")}
    scores = load_file(tmp_path / "r" / "scores.safetensors")["score"]
    assert (scores.dtype, scores.shape) == (torch.float64, (41,))
    indices = load_file(tmp_path / "r" / "indices-gradient-k5.safetensors")
    assert indices["indices"].dtype == torch.int64
    assert torch.equal(scores[indices["indices"]], indices["scores"])
    assert indices["indices"].tolist() == scores.argsort(descending=True, stable=True)[:5].tolist()
    predictions = load_file(tmp_path / "r" / "predictions-gradient-k5.safetensors")
    for name in ("mean", "std", "std_full", "target"):
        assert predictions[name].shape == (8, 1)


def test_formats(tool: Tool, project: Project, tmp_path: Path) -> None:
    files = [tmp_path / f"r.{suffix}" for suffix in ("json", "csv", "md", "tsv", "txt")]
    options = ["evaluate", "--method", "gradient,map", "--k", 5]
    outputs = [part for file in files for part in ("-o", file)]
    piped = tool(*options, *outputs, cwd=project.folder)
    result = strict(files[0].read_text())
    rows = [*result["rows"], *result["references"], result["full"]]
    assert [row["method"] for row in rows] == ["gradient", "map", "norm", "full"]
    for text, delimiter in ((files[1].read_text(), ","), (files[3].read_text(), "\t"), (piped.out, "\t")):
        found = list(csv.DictReader(io.StringIO(text), delimiter=delimiter))
        assert len(found) == 4
        for row, line in zip(rows, found, strict=True):
            for key, value in row.items():
                if key == "why":
                    continue
                assert line[key] == ("" if value is None else str(value)), key
    markdown = files[2].read_text().splitlines()
    table = [line for line in markdown if line.startswith("|")]
    assert len(table) == 6
    assert len({line.count("|") for line in table}) == 1
    assert f"{rows[0]['w2_relative']:.4g}" in table[2]
    assert f"{rows[0]['w2_relative']:.4g}" in files[4].read_text()
    assert "\x1b" not in files[4].read_text()
    for kind, file in zip(("json", "csv", "markdown", "tsv", "table"), files, strict=True):
        again = tool(*options, "--format", kind, cwd=project.folder)
        if kind == "json":
            assert core(strict(again.out)) == core(result)
        else:
            assert again.out.rstrip("\n") == file.read_text().rstrip("\n")
    exists = tool(*options, "-o", files[0], cwd=project.folder)
    assert exists.code == 2
    assert "--overwrite" in exists.err
    assert tool(*options, "-o", files[0], "--overwrite", cwd=project.folder).code == 0


def test_files_go_by_their_suffix_whatever_stdout_shows(tool: Tool, project: Project, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("base.json", "result.csv")]
    options = [word for file in files for word in ("-o", file)]
    shown = tool("evaluate", "--k", 5, "--format", "table", *options, cwd=project.folder)
    assert "──" in shown.out
    assert core(strict(files[0].read_text()))["rows"][0]["k"] == 5
    assert files[1].read_text().startswith("method,k,")
    assert tool("evaluate", "--k", 5, "--baseline", files[0], cwd=project.folder).code == 0
    refusal = tool("evaluate", "--k", 5, "--format", "csv", "-o", tmp_path / "any.dat", cwd=project.folder)
    assert refusal.code == 2
    assert "any.dat: no format belongs to this suffix" in refusal.err


def test_replacing_a_file_recomputes_nothing(tool: Tool, project: Project, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    evaluate = ("evaluate", "--k", 5, "-o", file)
    first = tool(*evaluate, cwd=project.folder)
    assert "reusing" not in first.err
    replaced = tool(*evaluate, "--overwrite", cwd=project.folder)
    assert (replaced.code, "reusing" in replaced.err) == (0, True)
    refusal = tool(*evaluate, "--recompute", cwd=project.folder)
    assert (refusal.code, "--overwrite" in refusal.err) == (2, True)
    assert "--force" not in refusal.err
    assert "reusing" not in tool("evaluate", "--k", 5, "--recompute", cwd=project.folder).err
    both = tool(*evaluate, "--force", cwd=project.folder)
    assert (both.code, "reusing" in both.err) == (0, False)
    assert both.err.count("--force is deprecated") == 1
    assert "--force" not in tool("evaluate", "--help", cwd=project.folder).out


def test_predictions(tool: Tool, project: Project, tmp_path: Path) -> None:
    project.use(data={**project.spec["data"], "standardise": STANDARDISE})
    lines = {}
    for suffix in ("csv", "jsonl", "safetensors"):
        file = tmp_path / f"p.{suffix}"
        run = tool("evaluate", "--k", 5, "--predictions", file, "--dtype", "float64", "--json", cwd=project.folder)
        noise = run.json()["noise_variance"]
        lines[suffix] = file
    table = list(csv.DictReader(io.StringIO(lines["csv"].read_text())))
    records = [strict(line) for line in lines["jsonl"].read_text().splitlines()]
    assert [{k: str(v) for k, v in record.items()} for record in records] == table
    tensors = load_file(lines["safetensors"])
    assert meta_of(lines["safetensors"])["kind"] == "predictions"
    assert [int(r["row"]) for r in table] == list(range(22, 30))
    mean, std = project.y[:22].mean(), project.y[:22].std()
    for i, record in enumerate(records):
        assert record["mean"] == tensors["mean"][i, 0]
        assert record["std"] == tensors["std"][i, 0]
        assert record["std_full"] == tensors["std_full"][i, 0]
        assert record["std"] <= record["std_full"]
        assert record["target"] == pytest.approx((project.y[22 + i, 0] - mean) / std, abs=1e-12)
        assert record["mean_original"] == pytest.approx(record["mean"] * std + mean, abs=1e-12)
        assert record["std_original"] == pytest.approx(record["std"] * std, abs=1e-12)
    x = torch.from_numpy((project.x - project.x[:22].mean(0)) / project.x[:22].std(0))
    f = project.model.double()(x).detach().numpy()
    np.testing.assert_allclose([r["mean"] for r in records], f[22:, 0], atol=1e-12)
    y = (project.y - mean) / std
    assert noise == pytest.approx(((y - f)[:22] ** 2).mean(), abs=1e-12)
    two = tool("evaluate", "--k", "5,6", "--predictions", tmp_path / "q.csv", cwd=project.folder)
    assert two.code == 0
    assert len((tmp_path / "q.csv").read_text().splitlines()) == 1 + 2 * 8
    assert not {"entropy", "mutual_information", "confidence"} & {*records[0], *tensors}


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3)])
def test_predictions_of_classes(tool: Tool, make: Make, tmp_path: Path, task: str, outputs: int) -> None:
    project = make(task, outputs)
    for suffix in ("csv", "jsonl", "safetensors"):
        words = ("--k", 20, "--dtype", "float64", "--predictions", tmp_path / f"p.{suffix}")
        assert tool("evaluate", *words, cwd=project.folder).code == 0
    table = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text())))
    records = [strict(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    tensors = load_file(tmp_path / "p.safetensors")
    assert [{k: str(v) for k, v in record.items()} for record in records] == table
    for i in range(8):
        rows = records[i * outputs : (i + 1) * outputs]
        p = [row["probability"] for row in rows]
        p += [1 - p[0]] if outputs == 1 else []
        for row in rows:
            assert row["entropy"] == pytest.approx(stats.entropy(p), abs=1e-10)
            assert row["confidence"] == pytest.approx(max(p), abs=1e-12)
            assert 0 < row["mutual_information"] < row["entropy"]
            for name in ("entropy", "mutual_information", "confidence"):
                assert row[name] == float(tensors[name][i])


def test_test_rows_without_targets(tool: Tool, project: Project, tmp_path: Path) -> None:
    project.write_csv("new.csv", ["a", "b", "c"], project.x[22:])
    data = {**project.spec["data"], "splits": {"train": {"rows": "0:22"}, "test": {"path": "new.csv"}}}
    known = tool("evaluate", "--k", 5, "--json", cwd=project.folder).json()
    project.use(data=data)
    predictions = tmp_path / "p.csv"
    blind = tool("evaluate", "--k", 5, "--json", "--predictions", predictions, cwd=project.folder).json()
    for key in ("nll", "rmse", "crps", "coverage95_total"):
        assert blind["rows"][0][key] is None
        assert "no targets" in blind["rows"][0]["why"][key]
    for key in ("w2", "w2_se", "mean_std", "ipv", "retained"):
        assert blind["rows"][0][key] == known["rows"][0][key]
    header, *lines = predictions.read_text().splitlines()
    assert "target" not in header.split(",")
    assert len(lines) == 8


def test_choices(tool: Tool, project: Project) -> None:
    def rows(*options: str, **more: object) -> list[dict]:
        return tool("evaluate", "--json", *options, cwd=project.folder, **more).json()["rows"]

    (default,) = rows()
    assert (default["method"], default["k"]) == ("gradient", 41)
    assert default["w2"] == pytest.approx(0, abs=1e-6)
    methods = "gradient,greedy,subnet-diagonal,last-k,random,magnitude,neural-linear,names:0.*,full,map,diagonal"
    found = {(row["method"], row["k"]): row for row in rows("--method", methods, "--k", "4,9")}
    with_k = [m for m in methods.split(",")[:6] for _ in (4, 9)]
    assert list(found) == [
        *zip(with_k, [4, 9] * 6, strict=True),
        *(("neural-linear", 9), ("names:0.*", 32), ("full", 41), ("map", None), ("diagonal", None)),
    ]
    assert found["neural-linear", 9]["w2"] == pytest.approx(found["last-k", 9]["w2"], abs=1e-9)
    assert found["map", None]["mean_std"] == 0
    assert found["full", 41]["w2"] == 0
    for method in ("gradient", "greedy"):
        assert found[method, 9]["ipv"] >= found[method, 4]["ipv"]
    assert [row["k"] for row in rows("--k", " 3, 3,2")] == [3, 2]
    (bare,) = rows("--k", "4", "--full", "none")
    assert bare["w2"] is None
    assert bare["why"]["retained"]
    assert bare["ipv"] == found["gradient", 4]["ipv"]


def test_options_that_change_the_choice(tool: Tool, project: Project) -> None:
    def chosen(method: str, *options: str) -> list[int]:
        made = tool("select", "--method", method, "--k", 12, "--json", *options, cwd=project.folder).json()
        assert sum(made["layers"].values()) == 12
        (path,) = [path for name, path in made["artifacts"].items() if name.startswith("indices-")]
        return load_file(path)["indices"].tolist()

    plain = chosen("gradient")
    assert chosen("gradient", "--reference", "train") == plain
    assert chosen("gradient", "--reference", "test") != plain
    assert sorted(chosen("gradient", "--score", "unweighted")) == sorted(plain)  # one noise variance: the same order
    exact = chosen("greedy")
    assert chosen("greedy", "--pool", "41") == exact
    assert chosen("greedy", "--pool", "40") != []
    assert set(chosen("greedy", "--pool", "12")) == set(plain)
    assert set(chosen("greedy", "--pool", "2k")) <= set(chosen_k(tool, project, 24))
    assert len(chosen("greedy", "--pool", "paper")) == 12
    assert chosen("random") == chosen("random", "--seed", "0")
    assert chosen("random", "--seed", "1") != chosen("random")
    assert chosen("last-k") == list(range(40, 28, -1))


def chosen_k(tool: Tool, project: Project, k: int) -> list[int]:
    made = tool("select", "--k", k, "--json", cwd=project.folder).json()
    return load_file(made["artifacts"][f"indices-gradient-k{k}"])["indices"].tolist()


def test_tasks(tool: Tool, make: Make) -> None:
    for task, outputs in (("regression", 2), ("binary", 1), ("multiclass", 3)):
        project = make(task, outputs, name=task)
        result = tool("evaluate", "--method", "gradient,greedy,diagonal", "--k", 6, "--json", cwd=project.folder).json()
        assert result["n_outputs"] == outputs
        assert (result["noise_variance"] is None) == (task != "regression")
        for row in [*result["rows"], result["full"]]:
            assert (row["accuracy"] is None) == (task == "regression")
            assert (row["rmse"] is None) == (task != "regression")
            assert row["w2"] >= 0
            assert row["nll"] > 0
            assert 0 < row["ipv"] <= result["full"]["ipv"] + 1e-12 or row["method"] == "diagonal"


def test_log_odds_and_oracles(tool: Tool, make: Make, tmp_path: Path) -> None:
    project = make("multiclass", 4)
    other = mlp([3, 8, 4], seed=1)
    save(other, project.folder / "oracle.safetensors")
    wide = mlp([3, 12, 4], seed=2)
    save(wide, project.folder / "wide.safetensors")
    wrap = {"binary-logodds": {"classes": [2, 3]}}
    model = {**project.spec["model"], "wrap": wrap}
    args = {"in": 3, "hidden": [12], "out": 4, "act": "tanh"}

    def odds(net: torch.nn.Module) -> np.ndarray:
        z = net.double()(torch.from_numpy(project.x)).detach()
        return (z[:, 2:].logsumexp(1) - z[:, :2].logsumexp(1)).numpy()

    np.savez(project.folder / "all.npz", f=odds(other))
    np.save(project.folder / "test.npy", odds(other)[22:])
    predictions = tmp_path / "p.jsonl"
    oracles = {
        "weights": {"weights": {"path": "oracle.safetensors"}},
        "whole file": {"predictions": "all.npz", "array": "f"},
        "test rows": {"predictions": "test.npy"},
        "wide": {"build": {"arch": "mlp", "args": args}, "weights": {"path": "wide.safetensors"}, "wrap": wrap},
    }
    found = {}
    for name, oracle in oracles.items():
        project.use(task="binary", model=model, oracle=oracle)
        options = ("--json", "--dtype", "float64", "--predictions", predictions, "--overwrite")
        found[name] = tool("evaluate", "--k", 6, *options, cwd=project.folder).json()["rows"][0]
        lines = [strict(line) for line in predictions.read_text().splitlines()]
        mean, std = (np.array([line[key] for line in lines]) for key in ("mean", "std"))
        np.testing.assert_allclose(mean, odds(project.model)[22:], atol=1e-12)
        truth = odds(wide if name == "wide" else other)[22:]
        assert found[name]["coverage95"] == pytest.approx(np.mean(np.abs(truth - mean) <= 1.96 * std))
        assert [line["target"] for line in lines] == [int(c >= 2) for c in project.y[22:, 0]]
    assert found["weights"] == found["whole file"] == found["test rows"]


NETS = """
import torch
from torch import nn

class Squeezed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 1)
        self.first.bias.requires_grad_(False)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(width)
    def forward(self, x):
        return self.last(self.drop(self.norm(torch.tanh(self.first(x))))).squeeze(1)

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 1), nn.Linear(2, 1)
    def forward(self, inputs):
        return self.left(inputs["u"]) + self.right(inputs["v"])

def make(width):
    return Squeezed(width).train()

def two():
    return Two()

def pick(problem, k):
    return list(range(k))
"""


def own_code(project: Project, function: str, model: torch.nn.Module, args: dict | None = None) -> None:
    package = project.folder / "mynets"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(NETS)
    save(model, project.folder / "own.safetensors")
    build = {"import": f"mynets:{function}", "args": args or {}}
    project.use(model={"build": build, "weights": {"path": "own.safetensors"}})


def test_own_network_and_selector(tool: Tool, project: Project) -> None:
    space: dict = {}
    exec(NETS, space)
    torch.manual_seed(0)
    own_code(project, "make", space["make"](5), {"width": 5})
    common = ("evaluate", "--method", "mynets:pick,gradient,neural-linear", "--k", 7, "--json")
    refused = tool(*common, cwd=project.folder)
    assert refused.code == 2
    assert "--allow-code mynets" in refused.err
    result = tool(*common, "--allow-code", "mynets", cwd=project.folder).json()
    assert result["n_params"] == 15 + 6 + 10  # without the frozen bias
    assert [(row["method"], row["k"]) for row in result["rows"]] == [
        ("mynets:pick", 7),
        ("gradient", 7),
        ("neural-linear", 6),
    ]
    by_environment = tool(*common, cwd=project.folder, env={"SUBLAPLACE_ALLOW_CODE": "other, mynets"})
    assert core(by_environment.json()) == core(result)
    everything = tool("evaluate", "--k", 31, "--allow-code", "mynets", "--json", cwd=project.folder).json()
    assert everything["rows"][0]["w2"] == pytest.approx(0, abs=1e-6)
    again = tool("evaluate", "--k", 32, "--allow-code", "mynets", cwd=project.folder)
    assert again.code == 2
    assert "31 trainable" in again.err


def test_several_input_arrays(tool: Tool, project: Project) -> None:
    space: dict = {}
    exec(NETS, space)
    own_code(project, "two", space["two"]())
    v = np.random.default_rng(1).normal(size=(30, 2))
    project.npz(u=project.x.astype(np.float32), v=v)
    project.spec["data"]["arrays"]["input"] = {"u": "u", "v": "v"}
    project.save()
    result = tool("evaluate", "--k", 3, "--json", "--allow-code", "mynets", cwd=project.folder).json()
    assert result["n_params"] == 7
    assert 0 < result["rows"][0]["retained"] < 1


def test_exported_program(tool: Tool, project: Project) -> None:
    plain = tool("evaluate", "--k", 5, "--json", cwd=project.folder).json()
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(project.model, (torch.randn(4, 3),), dynamic_shapes=({0: rows},))
    torch.export.save(program, project.folder / "model.pt2")
    project.use(model={"build": {"exported": "model.pt2"}})
    exported = tool("evaluate", "--k", 5, "--json", cwd=project.folder).json()
    assert exported["rows"][0]["w2"] == pytest.approx(plain["rows"][0]["w2"], abs=1e-6)
    assert exported["n_params"] == 41


def test_checkpoint_option(tool: Tool, project: Project, tmp_path: Path) -> None:
    other = mlp([3, 8, 1], seed=5)
    torch.save({"state_dict": {f"module.{k}": v for k, v in other.state_dict().items()}, "epoch": 3}, tmp_path / "o.pt")
    a = tool("evaluate", "--k", 5, "--json", cwd=project.folder).json()
    b = tool("evaluate", "--k", 5, "--json", "--checkpoint", "../o.pt", cwd=project.folder).json()
    save(other, project.folder / "model.safetensors")
    c = tool("evaluate", "--k", 5, "--json", cwd=project.folder).json()
    assert a["rows"] != b["rows"]
    assert b["rows"] == c["rows"]
    assert len(list((project.folder / ".sublaplace").iterdir())) == 2  # the same tensors are the same run


def test_indices_from_elsewhere(tool: Tool, project: Project, tmp_path: Path) -> None:
    made = tool("select", "--k", 5, "--json", "--run-dir", tmp_path / "a", cwd=project.folder).json()
    path = made["artifacts"]["indices-gradient-k5"]
    np.save(tmp_path / "i.npy", load_file(path)["indices"].numpy())
    (tmp_path / "i.txt").write_text("\n".join(map(str, load_file(path)["indices"].tolist())))
    usual = tool("fit", "--k", 5, "--json", cwd=project.folder).json()
    for file in (path, tmp_path / "i.npy", tmp_path / "i.txt"):
        fitted = tool("fit", "--indices", file, "--json", "--run-dir", tmp_path / "b", cwd=project.folder).json()
        assert (fitted["k"], fitted["ipv"]) == (5, usual["ipv"])


def test_little_memory_and_disk_change_no_number(tool: Tool, project: Project, tmp_path: Path) -> None:
    options = ("evaluate", "--method", "gradient,greedy", "--k", 6, "--json", "--dtype", "float64")
    usual = tool(*options, "--run-dir", tmp_path / "a", cwd=project.folder).json()
    for name, limits in {"b": ("--max-artifact", "1kB"), "c": ("--memory", "60kB")}.items():
        other = tool(*options, *limits, "--run-dir", tmp_path / name, cwd=project.folder).json()
        for mine, theirs in zip(usual["rows"], other["rows"], strict=True):
            assert mine.keys() == theirs.keys()
            for key, value in mine.items():
                expected = value if not isinstance(value, float) else pytest.approx(value, abs=1e-10)
                assert theirs[key] == expected, (name, key)
    assert (tmp_path / "b" / "jacobians-train.safetensors").stat().st_size < 22 * 41 * 8
    later = tool(*options, "--run-dir", tmp_path / "b", cwd=project.folder).json()
    assert core(later)["rows"][0]["w2"] == pytest.approx(usual["rows"][0]["w2"], abs=1e-10)


def test_dry_run_writes_nothing(tool: Tool, project: Project, tmp_path: Path) -> None:
    before = contents(project.folder)
    extra = ("-o", tmp_path / "r.json", "--predictions", tmp_path / "p.csv")
    for command in ("jacobians", "select", "fit", "evaluate"):
        more = extra if command == "evaluate" else ()
        plan = tool(command, "--dry-run", "--json", *more, cwd=project.folder).json()
        assert (plan["n_params"], plan["n_train"]) == (41, 22)
        assert plan["memory_estimate"] > 0
        assert plan["bytes_to_write"] > 0
        assert "jacobians-train" in plan["files"]
    assert contents(project.folder) == before
    assert not (project.folder / ".sublaplace").exists()
    assert list(tmp_path.iterdir()) == [project.folder]
    planned = set(plan["files"])
    result = tool("evaluate", "--json", cwd=project.folder).json()
    assert set(result["artifacts"]) == planned
    assert tool("evaluate", "--dry-run", "--json", cwd=project.folder).json()["files"] == {}


def test_scores_only_and_one_split(tool: Tool, project: Project, tmp_path: Path) -> None:
    run = tool("jacobians", "--scores-only", "--run-dir", tmp_path / "a", "--json", cwd=project.folder).json()
    assert set(run["artifacts"]) == {"scores"}
    assert not list((tmp_path / "a").glob("jacobians-*"))
    run = tool("jacobians", "--split", "test", "--run-dir", tmp_path / "b", "--json", cwd=project.folder).json()
    assert set(run["artifacts"]) == {"jacobians-test"}
    tool("jacobians", "--run-dir", tmp_path / "b", cwd=project.folder)
    a, b = (load_file(tmp_path / name / "scores.safetensors") for name in "ab")
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    project.spec["data"]["splits"]["reference"] = {"rows": "3:9"}
    project.save()
    run = tool("jacobians", "--json", cwd=project.folder).json()
    assert set(run["artifacts"]) == {"jacobians-train", "jacobians-test", "jacobians-reference", "scores"}


def test_only_training_rows(tool: Tool, project: Project) -> None:
    del project.spec["data"]["splits"]["test"]
    project.save()
    assert set(tool("jacobians", "--json", cwd=project.folder).json()["artifacts"]) == {"jacobians-train", "scores"}
    assert tool("fit", "--k", 3, "--json", cwd=project.folder).json()["k"] == 3
    run = tool("evaluate", "--k", 3, cwd=project.folder)
    assert run.code == 2
    assert "data.splits.test" in run.err


def test_safetensors_and_npy_data(tool: Tool, project: Project) -> None:
    expected = tool("evaluate", "--k", 5, "--json", cwd=project.folder).json()["rows"]
    x, y = project.tensors()
    save_file({"x": x, "y": y}, project.folder / "data.safetensors")
    splits = project.spec["data"]["splits"]
    arrays = {"input": "x", "target": "y"}
    project.use(data={"format": "safetensors", "path": "data.safetensors", "arrays": arrays, "splits": splits})
    assert tool("evaluate", "--k", 5, "--json", cwd=project.folder).json()["rows"] == expected
    np.savez_compressed(project.folder / "data.npz", x=project.x, y=project.y[:, 0], test_idx=np.arange(22, 30)[None])
    splits = {"train": {"rows": "0:22"}, "test": {"indices": {"array": "test_idx", "row": 0}}}
    project.use(data={"format": "npz", "path": "data.npz", "arrays": arrays, "splits": splits})
    assert tool("evaluate", "--k", 5, "--json", cwd=project.folder).json()["rows"] == expected


def test_files_that_are_written_are_named(tool: Tool, project: Project) -> None:
    options = ("evaluate", "--k", 5, "-o", "a.json", "--predictions", "p.csv")
    run = tool(*options, cwd=project.folder)
    assert [line for line in run.err.splitlines() if line.startswith("wrote")] == ["wrote a.json", "wrote p.csv"]
    assert "wrote" not in tool(*options, "--overwrite", "--quiet", cwd=project.folder).err


def test_rows_to_review_are_in_the_units_of_the_data(tool: Tool, project: Project) -> None:
    project.spec["data"]["standardise"] = {"target": "from-train"}
    project.save()
    run = tool("evaluate", "--k", 5, "--review", 3, "--json", "--predictions", "p.jsonl", cwd=project.folder)
    lines = {own["row"]: own for own in map(json.loads, (project.folder / "p.jsonl").read_text().splitlines())}
    for row in run.json()["review"]["rows"]:
        known = lines[row["row"]]
        assert row["predicted"] == pytest.approx(known["mean_original"])
        assert row["std"] == pytest.approx(known["std_original"])
        assert row["target"] == pytest.approx(float(project.y[row["row"], 0]))
