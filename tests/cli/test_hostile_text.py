"""Names from outside with control characters, line breaks and commands of CI runners: shown, never acted on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.cli_tools import Project, Run, Tool, call, refused
from cli.test_streams import on_terminal
from safetensors.torch import save_file

EVIL = "a\x1b[2J\x9b31m\u202e\u2028\x07\nerror: forged\r\n  ::error::forged ##[error]forged"
SHOWN = r"a\x1b[2J\x9b31m\u202e\u2028\x07\nerror: forged\r\n  ::error::forged \x23#[error]forged"
ONE_LINE = EVIL.replace("\r", "").replace("\n", "")  # a line break ends a line of csv
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]|##\\[")


def is_plain(text: str) -> None:
    """No control character, no line that a runner obeys, no forged line."""
    assert RAW.search(text) is None, repr(text)
    for line in text.split("\n"):
        assert not line.lstrip().startswith("::"), line
        assert not line.strip().startswith(("error: forged", "forged")), line


def shows(run: Run, *words: str) -> None:
    """A refusal with one message that shows the name."""
    assert (run.code, run.out) == (2, ""), run.err
    is_plain(run.err)
    assert "Traceback" not in run.err
    assert not run.err.startswith("error: unexpected ")
    assert sum(line.startswith(("error: ", "Error: ")) for line in run.err.split("\n")) == 1, run.err
    for word in words:
        assert word in run.err, run.err


def tensor_name(project: Project) -> tuple[str, ...]:
    save_file({**project.model.state_dict(), EVIL: torch.zeros(1)}, project.folder / "model.safetensors")
    return ()


def pickled_name(project: Project) -> tuple[str, ...]:
    torch.save({**project.model.state_dict(), EVIL: torch.zeros(1)}, project.folder / "model.pt")
    return ("--checkpoint", "model.pt")


def header(project: Project) -> tuple[str, ...]:
    project.write_csv("data.csv", ["a", "b", ONE_LINE, "y0"], np.hstack([project.x, project.y]))
    return ()


def cell(project: Project) -> tuple[str, ...]:
    path = project.folder / "data.csv"
    path.write_text(path.read_text() + f"1,2,3,{ONE_LINE}\n", newline="")
    return ()


def array_name(project: Project) -> tuple[str, ...]:
    project.npz(**{EVIL: project.y})
    project.spec["data"]["arrays"]["target"] = "absent"
    project.save()
    return ()


def spec_value(project: Project) -> tuple[str, ...]:
    project.spec["model"]["weights"]["path"] = EVIL
    project.save()
    return ()


def spec_task(project: Project) -> tuple[str, ...]:
    project.use(task=EVIL)
    return ()


def spec_key(project: Project) -> tuple[str, ...]:
    project.use(**{EVIL: 1})
    return ()


SOURCES: list[Callable[[Project], tuple[str, ...]]] = [
    *(tensor_name, pickled_name, header, cell, array_name, spec_value, spec_task, spec_key)
]


@pytest.mark.parametrize("damage", SOURCES)
def test_a_name_in_a_file(tool: Tool, project: Project, damage: Callable[[Project], tuple[str, ...]]) -> None:
    shows(tool("evaluate", "--k", "3", *damage(project), cwd=project.folder), "1b[2J")


@pytest.mark.parametrize(
    "options",
    [
        *(("--method", EVIL), ("--method", f"names:{EVIL}"), ("--checkpoint", EVIL), ("--spec", EVIL), ("--k", EVIL)),
        *(("--format", EVIL), ("-o", EVIL), ("--seed", EVIL), (f"--{EVIL}",), (f"--kk{EVIL}", "3"), (EVIL,)),
        *(("--fail-if", EVIL), ("--baseline", EVIL), ("--run-dir", f"file/{EVIL}"), ("--memory", EVIL)),
    ],
)
def test_a_word_of_the_command(tool: Tool, project: Project, options: tuple[str, ...]) -> None:
    (project.folder / "file").write_text("")
    shows(tool("evaluate", *options, cwd=project.folder), *([] if options[0] == "--seed" else [r"\x1b[2J"]))


def test_an_unknown_command(tool: Tool, tmp_path: Path) -> None:
    shows(tool(EVIL, cwd=tmp_path), r"\x1b[2J")
    assert tool("evaluate", "--metod", cwd=tmp_path).err.endswith(
        "\n\nError: No such option: --metod (Possible options: --memory, --method, --seed)\n"
    )


def test_bytes_that_are_not_utf8(tool: Tool, project: Project) -> None:
    name = "names:\udcff*"
    shows(tool("evaluate", "--method", name, cwd=project.folder), r"\udcff")
    torch.save(project.model.state_dict(), project.folder / "\udcff.pt")
    options = ("--checkpoint", "\udcff.pt", "--checkpoint", "model.safetensors", "-o", "r.json", "-o", "r.csv")
    run = tool("evaluate", "--k", "3", *options, "--predictions", "p.csv", "--report", "r.html", cwd=project.folder)
    assert run.code == 0, run.err
    assert r"\udcff.pt" in run.out
    for file in ("r.json", "r.csv", "p.csv", "r.html"):
        assert r"\udcff" in (project.folder / file).read_text(), file


def test_a_traceback(tool: Tool, project: Project) -> None:
    run = tool("evaluate", "--debug", "--method", EVIL, cwd=project.folder)
    assert RAW.search(run.err) is None
    assert "Traceback" in run.err
    assert [line for line in run.err.splitlines() if line.startswith("error: ")] == [f"error: unknown method '{SHOWN}'"]
    assert not any(line.lstrip().startswith("::") for line in run.err.splitlines())


def test_several_lines_of_our_own_stay_lines(tool: Tool, project: Project) -> None:
    project.use(task="regresion", extra=1)
    run = tool("evaluate", cwd=project.folder)
    first, *rest = run.err.splitlines()
    assert first.startswith("error: sublaplace.yaml:") or first.startswith(f"error: {project.folder}")
    assert len(rest) >= 1
    assert all(re.match(r"  \S*sublaplace.yaml:\d+:\d+: ", line) for line in rest)
    assert "\\n" not in run.err


@pytest.mark.parametrize("kind", ["tsv", "csv", "table", "markdown", "json", "jsonl", "junit"])
def test_a_checkpoint_in_the_result(tool: Tool, project: Project, kind: str) -> None:
    name = EVIL.replace("/", "") + ".safetensors"
    (project.folder / name).write_bytes((project.folder / "model.safetensors").read_bytes())
    options = ("--checkpoint", name, "--checkpoint", "model.safetensors", "--fail-if", "w2>1e9", "--format", kind)
    run = tool("evaluate", "--method", "gradient,names:[0-9]*", "--k", "3", "-v", *options, cwd=project.folder)
    assert run.code == 0, run.err
    is_plain(run.out.replace("\t", " ") if kind == "tsv" else run.out)
    is_plain(run.err)
    if kind in ("tsv", "csv"):
        assert len(run.out.splitlines()) == 1 + 2 * 2 + 2 + 2 + 1, "one per row, mean, reference and full"


@pytest.mark.parametrize("method", ["names:[a-z0-9]*", "names:[/0-9]*", "names:[02.]*weight"])
def test_a_label_is_no_markup(tool: Tool, project: Project, method: str) -> None:
    options = ("evaluate", "--method", method)
    run = tool(*options, "--format", "table", "--plot", "p.svg", "--report", "r.html", cwd=project.folder)
    assert run.code == 0, run.err
    assert f"\n{method} " in run.out
    code, out, _ = on_terminal((*options, "--overwrite"), project.folder, {"NO_COLOR": "1"}, 200)
    assert code == 0
    assert method in out


def test_a_dollar_is_no_formula(tool: Tool, project: Project) -> None:
    options = ("--method", "names:[$0]*[$.]*", "--plot", "p.png", "--report", "r.html")
    run = tool("evaluate", *options, cwd=project.folder)
    assert run.code == 0, run.err
    assert (project.folder / "p.png").read_bytes().startswith(b"\x89PNG")


def test_predictions_in_csv(tool: Tool, project: Project) -> None:
    for name in ("=1.safetensors", "a\nb.safetensors"):
        (project.folder / name).write_bytes((project.folder / "model.safetensors").read_bytes())
    options = ("--checkpoint", "=1.safetensors", "--checkpoint", "a\nb.safetensors", "--predictions", "p.csv")
    assert tool("evaluate", "--k", "3", *options, cwd=project.folder).code == 0
    names = {line.split(",")[0] for line in (project.folder / "p.csv").read_text().splitlines()}
    assert names == {"checkpoint", "'=1.safetensors", r"a\nb.safetensors"}


@pytest.mark.parametrize("name", ["run.json", "evaluation.json"])
def test_a_file_of_a_run_folder_is_never_overwritten(tool: Tool, project: Project, name: str) -> None:
    evaluate = ("evaluate", "--k", "3", "--overwrite")
    assert tool(*evaluate, "--run-dir", "r", cwd=project.folder).code == 0
    before = (project.folder / "r" / name).read_bytes()
    (project.folder / "link.json").symlink_to(Path("r") / name)
    for folder in ("r", "other"):
        for path in (f"r/{name}", f"r/../r/{name}", "link.json"):
            run = tool(*evaluate, "--run-dir", folder, "-o", path, cwd=project.folder)
            refused(run, f"-o {path}", "run folder")
    assert (project.folder / "r" / name).read_bytes() == before
    (project.folder / name).write_text("{}")
    assert tool(*evaluate, "--run-dir", "r", "-o", name, cwd=project.folder).code == 0, "elsewhere the name is free"


def test_a_matplotlibrc_is_ignored(project: Project) -> None:
    options = ("evaluate", "--k", "3", "--plot", "p.svg", "--overwrite")
    assert call(*options, cwd=project.folder).code == 0
    before = (project.folder / "p.svg").read_bytes()
    (project.folder / "matplotlibrc").write_text("figure.facecolor: red\naxes.facecolor: red\nno such key: \x1b[2J\n")
    run = call(*options, cwd=project.folder)
    assert run.code == 0
    is_plain(run.err)
    assert (project.folder / "p.svg").read_bytes() == before
