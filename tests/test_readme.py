"""The README cannot drift: its commands run, and it names what there is."""

from __future__ import annotations

import dataclasses
import glob
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cli.cli_tools import Tool

from sublaplace_cli import catalog
from sublaplace_cli.files import spec_models
from sublaplace_cli.files.spec import load_spec
from sublaplace_cli.options import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMAND_LINES = re.findall(r"^\$ (sublaplace .+)$", README, flags=re.MULTILINE)


def test_every_command_of_the_readme_runs(tmp_path):
    folder = tmp_path / "quickstart"
    shutil.copytree(ROOT / "examples" / "quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"))
    assert COMMAND_LINES
    tool = Tool(tmp_path)
    for line in COMMAND_LINES:
        done = tool(*expanded(shlex.split(line)[1:], folder), cwd=folder)
        assert done.code == 0, f"{line}\n{done.err}"
        assert done.out.strip(), line
    tool.close()
    assert (folder / "predictions.csv").read_text().startswith("method,k,row,output,mean,std")


def expanded(words, folder):
    """Patterns as a shell would fill them in."""
    for word in words:
        yield from sorted(glob.glob(word, root_dir=folder, include_hidden=True)) or [word] if "*" in word else [word]


def test_the_scripts_that_the_readme_names_exist():
    for line in re.findall(r"^\$ bash (\S+)", README, flags=re.MULTILINE):
        assert (ROOT / line).is_file()


def test_the_spec_of_the_readme_is_valid(tmp_path):
    text = re.search(r"```yaml\n(.*?)```", README, flags=re.DOTALL)[1]
    (tmp_path / "sublaplace.yaml").write_text(text)
    assert load_spec(tmp_path / "sublaplace.yaml").spec.task == "regression"
    assert yaml.safe_load(text)["version"] == 1


@pytest.mark.parametrize("name", [*catalog.METHODS, *COMMANDS, *catalog.FORMATS])
def test_methods_commands_and_formats_are_documented(name):
    assert f"`{name}`" in README or f"sublaplace {name}" in README


@pytest.mark.parametrize("name", [*catalog.DATA_FORMATS, *catalog.ARCHITECTURES, *catalog.LIKELIHOODS])
def test_spec_values_are_documented(name):
    assert name in README


def spec_keys():
    for part in (
        spec_models.ModelSpec, spec_models.WeightsSpec, spec_models.DataSpec, spec_models.SplitSpec,
        spec_models.PosteriorSpec, spec_models.OracleSpec, spec_models.BuildSpec,
    ):  # fmt: skip
        for name, field in part.model_fields.items():
            yield field.alias or name


@pytest.mark.parametrize("key", sorted(set(spec_keys())))
def test_spec_keys_are_documented(key):
    assert key in README


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


def test_every_option_has_help():
    from sublaplace_cli.options import OPTIONS
    from sublaplace_cli.steps.settings import Settings

    assert {field.name for field in dataclasses.fields(Settings)} == set(OPTIONS)
    assert all(option.help for option in OPTIONS.values())
