"""The README and the guides cannot drift: their commands run, their links lead somewhere, they name what there is."""

from __future__ import annotations

import dataclasses
import glob
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import typing
from pathlib import Path

import pytest
import yaml
from cli.cli_tools import Tool, shell
from safetensors.torch import load_file, save_file

from sublaplace_cli import catalog, guide
from sublaplace_cli.cli.settings import COMMANDS, Settings, Text
from sublaplace_cli.files.spec import models as spec_models
from sublaplace_cli.files.spec.loading import load_spec
from sublaplace_cli.files.spec.splits import SplitSpec

ROOT = Path(__file__).parents[1]
PAGES = {"README": ROOT / "README.md", **{topic: guide.FOLDER / f"{topic}.md" for topic in guide.TOPICS}}
README = PAGES["README"].read_text()
DOCS = "\n".join(page.read_text() for page in PAGES.values())


@pytest.fixture
def quickstart(tmp_path):
    """The folder that the README's commands are run in, with two more trainings in `runs/`."""
    folder = tmp_path / "quickstart"
    shutil.copytree(ROOT / "examples" / "quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"))
    (folder / "runs").mkdir()
    weights = load_file(folder / "model.safetensors")
    for i in range(2):
        moved = {name: tensor * (1 + 0.01 * i) for name, tensor in weights.items()}
        save_file(moved, folder / "runs" / f"{i}.safetensors")
    return folder


def command_lines(page):
    return re.findall(r"^\$ (?!bash )(.+)$", page.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("page", [name for name, page in PAGES.items() if command_lines(page)])
def test_every_command_runs(tmp_path, quickstart, page):
    tool = Tool(tmp_path)
    for line in command_lines(PAGES[page]):
        if "--nnodes" in line:  # needs the machines that it names
            continue
        if line.startswith("torchrun "):
            code, out, err = by_torchrun(line, tmp_path, quickstart)
        elif "|" in re.sub(r"'.*?'", "", line):
            code, out, err = by_shell(line, tmp_path, quickstart)
        else:
            done = tool(*expanded(line, quickstart), cwd=quickstart)
            code, out, err = done.code, done.out, done.err
        assert code == 0, f"{line}\n{err}"
        assert out.strip(), line
    if page == "README":
        assert (quickstart / "predictions.csv").read_text().startswith("method,k,row,output,mean,std")
        assert (quickstart / "curves.png").stat().st_size > 10_000


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 220


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", PAGES[page].read_text()):
        name, _, anchor = target.partition("#")
        file = (PAGES[page].parent / name) if name else PAGES[page]
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_every_guide_is_a_topic_and_in_the_readme():
    assert {page.stem for page in guide.FOLDER.glob("*.md")} == set(guide.TOPICS)
    for topic in guide.TOPICS:
        assert f"(sublaplace_cli/guide/{topic}.md)" in README


def by_torchrun(line, folder, cwd):
    """Several processes, on a port of their own, with this checkout as the command `sublaplace`."""
    words = [f"{sysconfig.get_path('scripts')}/torchrun", "--standalone", *shlex.split(line)[1:]]
    done = subprocess.run(words, cwd=cwd, env=shell(folder), capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def by_shell(line, folder, cwd):
    """A pipeline, with this checkout as the command `sublaplace`."""
    if "jq" in line and shutil.which("jq") is None:
        return 0, "there is no jq here", ""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=cwd, env=shell(folder), capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def expanded(line, folder):
    """The words of a line, patterns filled in as a shell would: those without quotes."""
    for word in shlex.split(line)[1:]:
        bare = "*" in word and f"'{word}'" not in line
        yield from sorted(glob.glob(word, root_dir=folder, include_hidden=True)) if bare else [word]


def test_the_scripts_that_the_readme_names_exist():
    for line in re.findall(r"^\$ bash (\S+)", DOCS, flags=re.MULTILINE):
        assert (ROOT / line).is_file()


def test_the_spec_of_the_readme_is_valid(tmp_path):
    text = re.search(r"```yaml\n(.*?)```", README, flags=re.DOTALL)[1]
    (tmp_path / "sublaplace.yaml").write_text(text)
    assert load_spec(tmp_path / "sublaplace.yaml").spec.task == "regression"
    assert yaml.safe_load(text)["version"] == 1


@pytest.mark.parametrize("name", [*catalog.METHODS, *COMMANDS, *catalog.FORMATS])
def test_methods_commands_and_formats_are_documented(name):
    assert f"`{name}`" in DOCS or f"sublaplace {name}" in DOCS


@pytest.mark.parametrize("name", [*catalog.DATA_FORMATS, *catalog.ARCHITECTURES, *catalog.TASKS])
def test_spec_values_are_documented(name):
    assert name in DOCS


def spec_keys():
    for part in (
        spec_models.ModelSpec, spec_models.WeightsSpec, spec_models.DataSpec, SplitSpec,
        spec_models.PosteriorSpec, spec_models.OracleSpec, spec_models.BuildSpec,
    ):  # fmt: skip
        for name, field in part.model_fields.items():
            yield field.alias or name


@pytest.mark.parametrize("key", sorted(set(spec_keys())))
def test_spec_keys_are_documented(key):
    assert key in DOCS


def test_the_quickstart_table_of_the_readme_is_what_the_tool_prints(tmp_path):
    folder = tmp_path / "quickstart"
    shutil.copytree(ROOT / "examples" / "quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"))
    words = [sys.executable, "-m", "sublaplace_cli", "evaluate", "--method", "gradient", "--k", "1000"]
    done = subprocess.run([*words, "--format", "table"], cwd=folder, capture_output=True, text=True)
    # Rounded to four digits, it must agree everywhere; kernels of other machines may differ in the last one.
    printed, written = numbers(done.stdout), numbers(re.search(r"```\n(regression: .*?)```", README, re.DOTALL)[1])
    assert printed == pytest.approx(written, rel=2e-3)


def numbers(text):
    return [float(word) for word in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?!\w)", text)]


def test_every_option_has_help_and_a_command():
    names = {field.name for field in dataclasses.fields(Settings)}
    assert names == {name for command in COMMANDS.values() for name in command.fields}
    for name, hint in typing.get_type_hints(Settings, include_extras=True).items():
        (text,) = [note for note in hint.__metadata__ if isinstance(note, Text)]
        assert text.help, name
