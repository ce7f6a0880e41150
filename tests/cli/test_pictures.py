"""Pictures and reports: drawn from the result, complete in one file, refused early where they cannot be."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from cli.cli_tools import Project, Tool, mlp, refused, save

from sublaplace_cli.catalog import PICTURES
from sublaplace_cli.cli import usage
from sublaplace_cli.cli.settings import Settings
from sublaplace_cli.errors import UserError

METHODS = ("--method", "gradient,last-k,neural-linear,norm,map", "--k", "5,10,20")


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_every_picture_of_every_task(tool: Tool, make, kind: str, task: str) -> None:
    project = make(task, 3 if task == "multiclass" else 1)
    project.spec["data"]["splits"] = {"train": {"rows": "0:22"}, "test": {"rows": "22:27"}, "ood": {"rows": "27:"}}
    project.save()
    words = ("evaluate", *METHODS, "--plot", "a.svg", "--plot-kind", kind)
    run = tool(*words, cwd=project.folder)
    assert run.code == 0, run.err
    first = (project.folder / "a.svg").read_bytes()
    assert ElementTree.fromstring(first).tag.endswith("svg")
    if task == "binary":
        tool(*words, "--overwrite", cwd=project.folder)
        assert (project.folder / "a.svg").read_bytes() == first, "the same numbers give the same picture"


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_every_kind_of_file(tool: Tool, project: Project, suffix: str, start: bytes) -> None:
    assert tool("evaluate", "--k", 5, "--plot", f"a{suffix}", cwd=project.folder).code == 0
    assert (project.folder / f"a{suffix}").read_bytes().startswith(start)


def svg_texts(path) -> str:
    """Text is drawn as outlines; matplotlib leaves what it says in comments."""
    return " ".join(re.findall(r"<!-- (.*?) -->", path.read_text()))


def test_curves_name_methods_k_and_the_nominal_coverage(tool: Tool, project: Project) -> None:
    tool("evaluate", *METHODS, "--plot", "a.svg", cwd=project.folder)
    said = svg_texts(project.folder / "a.svg")
    for word in ("gradient", "last-k", "neural-linear", "norm", "full", "nominal 0.95", "20"):
        assert word in said


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_risks_have_the_aurc_of_the_result(tool: Tool, make, task: str) -> None:
    project = make(task, 3 if task == "multiclass" else 1)
    words = ("--plot", "a.svg", "--plot-kind", "risk-coverage", "--json")
    rows = tool("evaluate", *METHODS, *words, cwd=project.folder).json()["rows"]
    said = svg_texts(project.folder / "a.svg")
    for row in rows:
        name = row["method"] if row["k"] is None else f"{row['method']} (k = {row['k']})"
        assert f"{name}, aurc {row['aurc']:.4g}" in said
    assert ("mean squared error" if task == "regression" else "error rate") in said
    assert "rows in random order" in said


def test_curves_of_a_sweep_and_of_a_bracket(tool: Tool, project: Project) -> None:
    save(mlp([3, 8, 1], seed=1), project.folder / "other.safetensors")
    both = ("--checkpoint", "model.safetensors", "--checkpoint", "other.safetensors")
    assert tool("evaluate", *METHODS, *both, "--plot", "a.svg", "--report", "r.html", cwd=project.folder).code == 0
    assert "mean of 2 runs" in svg_texts(project.folder / "a.svg")
    bracket = ("--full", "bracket", "--full-rows", 10)
    assert tool("evaluate", "--k", "5,10", *bracket, "--plot", "b.svg", cwd=project.folder).code == 0
    assert "bracket" in svg_texts(project.folder / "b.svg")
    assert tool("evaluate", "--k", 5, "--full", "none", "--plot", "c.svg", cwd=project.folder).code == 0
    assert "no w2 in this result" in svg_texts(project.folder / "c.svg")
    assert tool("evaluate", "--k", project.size, "--plot", "d.svg", cwd=project.folder).code == 0
    assert "w2 is 0 up to rounding" in svg_texts(project.folder / "d.svg")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--plot", "a.bmp"], ["a.bmp", ".png"]),
        (["--plot-kind", "map"], ["--plot FILE"]),
        (["--plot", "a.png", "--plot-kind", "maps"], ["maps", "did you mean 'map'"]),
        (["--plot", "a.png", "--plot-kind", "scatter", "--full", "none"], ["--full exact"]),
        (["--plot", "a.png", "--plot-kind", "map", "--method", "norm"], ["chooses a sub-network"]),
        (["--plot", "a.png", "--plot-kind", "ood"], ["no split ood", "data.splits.ood"]),
        (["--report", "a.pdf"], [".html"]),
        (["--plot", "no/a.png"], ["no folder"]),
        (["--plot", "/proc/a.png"], ["cannot be written here"]),
        (["--plot", "a.png", "-o", "a.png"], ["a.png"]),
        (["--report", "sublaplace.yaml"], [".html"]),
    ],
)
def test_what_cannot_be_drawn_is_known_first(tool: Tool, project: Project, options, words) -> None:
    refused(tool("evaluate", *([] if "--method" in options else ["--k", 5]), *options, cwd=project.folder), *words)
    assert not (project.folder / ".sublaplace").exists()


def test_a_pipe_is_no_output_file(tool: Tool, project: Project) -> None:
    os.mkfifo(project.folder / "pipe.json")
    run = tool("evaluate", "--k", 5, "-o", "pipe.json", "--overwrite", cwd=project.folder)
    refused(run, "pipe.json", "not a regular file")


def test_no_targets_no_calibration(tool: Tool, project: Project) -> None:
    project.npz()
    project.spec["data"]["splits"]["test"] = {"path": "new.npz", "arrays": {"input": "x"}}
    import numpy as np

    np.savez(project.folder / "new.npz", x=project.x[:5].astype("float32"))
    project.save()
    for kind in ("calibration", "risk-coverage"):
        refused(tool("evaluate", "--k", 5, "--plot", "a.png", "--plot-kind", kind, cwd=project.folder), kind, "targets")
    assert tool("evaluate", "--k", 5, "--report", "r.html", cwd=project.folder).code == 0
    assert "Not drawn: the test rows have no targets" in (project.folder / "r.html").read_text()


def test_without_matplotlib_it_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(usage, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="matplotlib") as error:
        usage.parse_job("evaluate", Settings(plot=tmp_path / "a.png"))
    assert "pip install '.[plot]'" in error.value.hint


class Page(HTMLParser):
    """Tags, their attributes, and the text outside styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if "style" not in self.open:
            self.words.append(data)


def test_a_report_is_one_file_with_everything_in_it(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--k", "5,10", "--fail-if", "w2 > 0", "--fail-if", "w2 > 1000", "--report", "r.html")
    run = tool(*words, "--format", "csv", cwd=project.folder)
    assert run.code == 1
    text = (project.folder / "r.html").read_text()
    page = Page(text)
    said = " ".join(page.words)
    for part in (
        "Gate: a limit is broken",
        "limit max 0",
        "sublaplace evaluate --k 5,10",
        "task: regression",
        "weights_sha256",
    ):
        assert part in said, part
    images = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    assert len(images) == len(PICTURES) - 1
    assert "Not drawn: no split ood in the spec." in said
    assert all(source.startswith("data:image/svg+xml;base64,") for source in images)
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe")]
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
    w2 = float(run.out.splitlines()[1].split(",")[5])
    assert f"{w2:.4g}" in said


def test_a_report_escapes_what_it_is_given(tool: Tool, project: Project) -> None:
    path = project.save(name="odd <b>&.yaml")
    path.write_text(path.read_text() + "# <script>alert(1)</script>\n")
    words = ("evaluate", "--spec", path.name, "--method", "names:0.*", "--report", "r.html")
    assert tool(*words, cwd=project.folder).code == 0
    page = Page((project.folder / "r.html").read_text())
    assert "script" not in [tag for tag, _ in page.tags]
    assert "<script>alert(1)</script>" in "".join(page.words)


def test_a_posterior_alone_can_be_reported(tool: Tool, project: Project) -> None:
    assert tool("fit", "--k", 5, "--run-dir", "r", cwd=project.folder).code == 0
    words = ("evaluate", "--posterior", "r/posterior-gradient-k5.safetensors", "--report", "p.html")
    assert tool(*words, cwd=project.folder).code == 0
    assert "Calibration" in (project.folder / "p.html").read_text()
