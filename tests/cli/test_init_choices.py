"""What `sublaplace init` chooses between: files, splits, columns, activations, the first k."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.cli_tools import Tool
from cli.test_init import N_ROWS, Net, Trained, spec_in, started, table_of, write_csv
from huggingface_folders import change_json, made_texts, save_bert, save_tokenizer, write_table
from torch import nn

from sublaplace_cli.commands.init import Wishes, start
from sublaplace_cli.errors import UserError


@pytest.fixture(scope="module")
def trained() -> Trained:
    return Trained()


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)


def saved(folder: Path, net: nn.Module, name: str = "model.pt") -> None:
    torch.save(net.state_dict(), folder / name)


def test_targets_that_are_all_different_are_in_no_order(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    saved(tmp_path, trained.net)
    write_csv(tmp_path / "rows.csv", table_of(trained))
    assert "order of their targets" not in started(tool, tmp_path).out
    assert spec_in(tmp_path).data.splits.train.rows == f"0:{round(0.8 * N_ROWS)}"


def test_measurements_that_are_sorted_alternate(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    saved(tmp_path, trained.net)
    np.savez(tmp_path / "rows.npz", x=trained.X, y=np.sort(trained.y))
    assert "order of their targets" in started(tool, tmp_path).out
    assert spec_in(tmp_path).data.splits.train.rows == "0::2"


@pytest.mark.parametrize("name", ["id", "patient_id"])
def test_identifiers_are_left_out(tool: Tool, tmp_path: Path, trained: Trained, name: str) -> None:
    saved(tmp_path, trained.net)
    numbers = np.random.default_rng(1).permutation(10**6)[:N_ROWS]
    write_csv(tmp_path / "rows.csv", {name: numbers, **table_of(trained)})
    assert "another number in every row" in started(tool, tmp_path).out
    assert spec_in(tmp_path).data.columns.exclude == [name]


@pytest.mark.parametrize("shuffled", [False, True])
def test_an_index_without_a_name_is_left_out_by_its_position(
    tool: Tool, tmp_path: Path, trained: Trained, shuffled: bool
) -> None:
    """As pandas writes it."""
    saved(tmp_path, trained.net)
    index = np.random.default_rng(1).permutation(N_ROWS) if shuffled else np.arange(N_ROWS)
    write_csv(tmp_path / "rows.csv", {"": index, **table_of(trained)})
    started(tool, tmp_path)
    assert spec_in(tmp_path).data.columns.exclude == [0]
    assert tool("evaluate", "--k", "20", cwd=tmp_path).code == 0


def test_columns_of_one_name_go_by_their_positions(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    saved(tmp_path, trained.net)
    write_csv(tmp_path / "rows.csv", {"note": ["same"] * N_ROWS, "more": ["same"] * N_ROWS, **table_of(trained)})
    text = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(text.replace("more", "note", 1))
    started(tool, tmp_path)
    assert spec_in(tmp_path).data.columns.exclude == [0, 1]
    assert tool("evaluate", "--k", "20", cwd=tmp_path).code == 0


def test_an_identifier_that_the_network_takes_stays(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    saved(tmp_path, nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)))
    write_csv(tmp_path / "rows.csv", {"id": np.arange(N_ROWS) * 7, **table_of(trained)})
    started(tool, tmp_path)
    assert not spec_in(tmp_path).data.columns.exclude


@pytest.mark.parametrize(
    ("others", "message"),
    [(("other.csv",), "2 data files here: other.csv, rows.csv"), (("b.pt",), "2 checkpoints here: b.pt, model.pt")],
)
def test_of_several_files_none_is_taken(
    tool: Tool, tmp_path: Path, trained: Trained, others: tuple[str, ...], message: str
) -> None:
    saved(tmp_path, trained.net)
    write_csv(tmp_path / "rows.csv", table_of(trained))
    for other in others:
        (tmp_path / other).write_bytes(b"")
    assert message in started(tool, tmp_path, code=2).err
    assert not (tmp_path / "sublaplace.yaml").exists()


def test_test_rows_beside_training_rows_are_one_choice(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    saved(tmp_path, trained.net)
    for name in ("train.csv", "test.csv"):
        write_csv(tmp_path / name, table_of(trained))
    started(tool, tmp_path)
    data = spec_in(tmp_path).data
    assert (data.path, data.splits.test.path) == ("train.csv", "test.csv")


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_table_without_commas_is_refused(tool: Tool, tmp_path: Path, trained: Trained, sign: str) -> None:
    """One column of that name would be no target, and no row an input."""
    saved(tmp_path, trained.net)
    write_csv(tmp_path / "rows.csv", table_of(trained))
    (tmp_path / "rows.csv").write_text((tmp_path / "rows.csv").read_text().replace(",", sign))
    done = started(tool, tmp_path, code=2)
    assert f"its cells are separated by {sign!r}, expected commas" in done.err
    assert not (tmp_path / "sublaplace.yaml").exists()


def test_a_target_that_never_changes_is_refused(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    saved(tmp_path, trained.net)
    write_csv(tmp_path / "rows.csv", {**table_of(trained), "target": [1] * N_ROWS})
    assert f"all of the first {N_ROWS} values of 'target' are the same" in started(tool, tmp_path, code=2).err


def test_a_folder_that_is_not_there_is_named(tool: Tool, tmp_path: Path) -> None:
    done = started(tool, tmp_path, "--spec", "gone/sublaplace.yaml", code=2)
    assert "there is no folder" in done.err
    assert "unexpected" not in done.err


@pytest.mark.parametrize("words", [("--spec", "a" * 300), ("a" * 300,)], ids=["spec", "checkpoint"])
def test_a_name_that_is_too_long_is_a_mistake_of_the_user(tool: Tool, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = started(tool, tmp_path, *words, code=2)
    assert "File name too long" in done.err
    assert "unexpected" not in done.err


def test_a_spec_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, trained.net)
    write_csv(tmp_path / "rows.csv", table_of(trained))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"could not write .*No space left") as refusal:
        start(Wishes(tmp_path / "model.pt", tmp_path / "rows.csv", tmp_path / "sublaplace.yaml"))
    assert "--spec" in str(refusal.value.hint)
    assert "--run-dir" not in str(refusal.value.hint)  # init has no such option
    assert not (tmp_path / "sublaplace.yaml").exists()


def test_the_next_command_can_be_pasted(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    saved(folder, trained.net)
    write_csv(folder / "rows.csv", table_of(trained))
    spec = folder / "first try.yaml"
    done = started(tool, tmp_path, folder / "model.pt", folder / "rows.csv", "--spec", spec)
    line = done.out.splitlines()[-1].removeprefix("next: sublaplace ")
    assert tool(*shlex.split(line), cwd=tmp_path).code == 0


def test_a_small_network_gets_a_k_that_it_has(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    saved(tmp_path, Net())
    write_csv(tmp_path / "rows.csv", table_of(trained))
    n_params = sum(parameter.numel() for parameter in Net().parameters())
    done = started(tool, tmp_path)
    assert f"--k {n_params // 2}\n" in done.out
    assert tool("evaluate", "--method", "gradient", "--k", str(n_params // 2), cwd=tmp_path).code == 0


def test_relu_is_more_usual_than_leaky_relu(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    saved(tmp_path, net)
    with torch.no_grad():
        y = net(torch.tensor(trained.standardised, dtype=torch.float32))[:, 0].numpy()
    np.savez(tmp_path / "rows.npz", x=trained.standardised, y=y)
    done = started(tool, tmp_path)
    assert spec_in(tmp_path).model.build.args["act"] == "relu"
    (line,) = (line for line in done.out.splitlines() if line.strip().startswith("activation"))
    assert "check" in line
    assert "next best: leaky_relu, 100%" in line


def test_activations_that_explain_as_much_are_a_guess(tool: Tool, tmp_path: Path, trained: Trained) -> None:
    """Classes so far apart that tanh and elu tell them apart equally well."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    X = torch.tensor(trained.standardised, dtype=torch.float32)
    y = (X[:, 0] > 0).float()
    X[:, 0] += 4 * y - 2
    optimiser = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(X)[:, 0], y).backward()
        optimiser.step()
    saved(tmp_path, net)
    np.savez(tmp_path / "rows.npz", x=X.numpy(), y=y.numpy())
    done = started(tool, tmp_path)
    (line,) = (line for line in done.out.splitlines() if line.strip().startswith("activation"))
    assert "check" in line, line
    assert "TODO check" in (tmp_path / "sublaplace.yaml").read_text().partition("act: ")[2].splitlines()[0]


def test_a_hugging_face_folder_is_found(tool: Tool, tmp_path: Path) -> None:
    folder = tmp_path / "my-bert"
    save_bert(folder)
    save_tokenizer(folder)
    write_table(tmp_path / "rows.csv", ["text", "label"], made_texts(30))
    started(tool, tmp_path)
    spec = spec_in(tmp_path)
    assert spec.model.build.huggingface == "my-bert"
    assert spec.data.text.column == "text"


@pytest.mark.parametrize(
    ("names", "classes", "certainty"),
    [(("pos", "neg"), ["pos", "neg"], "sure"), (("LABEL_0", "LABEL_1"), ["neg", "pos"], "check")],
)
def test_labels_are_in_the_order_of_the_configuration(
    tool: Tool, tmp_path: Path, names: tuple[str, str], classes: list[str], certainty: str
) -> None:
    folder = tmp_path / "my-bert"
    save_bert(folder)
    save_tokenizer(folder)
    change_json(folder / "config.json", id2label=dict(enumerate(names)))
    rows = [(text, ("neg", "pos")[label]) for text, label in made_texts(30)]
    write_table(tmp_path / "rows.csv", ["text", "label"], rows)
    done = started(tool, tmp_path, "my-bert", "rows.csv")
    assert spec_in(tmp_path).data.classes == classes
    (line,) = (line for line in done.out.splitlines() if line.strip().startswith("classes"))
    assert certainty in line
