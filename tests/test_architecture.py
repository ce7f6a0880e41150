"""The shape of the code: layers, sizes, names, and who may use what."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest
import source_rules as rules
from source_rules import Source

import sublaplace_cli
from sublaplace_cli import catalog
from sublaplace_cli.cli.advice import ADVICE
from sublaplace_cli.errors import Reason
from sublaplace_cli.files.spec.models import Spec
from sublaplace_cli.files.spec.part import Part

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sublaplace_cli"
SOURCES = [
    Source(PurePosixPath(path.relative_to(PACKAGE).as_posix()), path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
]
RECORD_BASES = {"NamedTuple", "TypedDict", "Part"}
NOT_A_RECORD = {"Settings"}  # the options of the command line, one field each
MOST_FUNCTIONS_OF_A_RUN = 40


def spec_pairs(part: type[Part]) -> set[str]:
    """`posterior.prior_precision`, `train.n` …: every key of the spec with the key above it."""
    pairs = set()
    for name, field in part.model_fields.items():
        for below in parts_in(field.annotation):
            pairs |= {f"{field.alias or name}.{key}" for key in below.keys().values()} | spec_pairs(below)
    return pairs


def parts_in(annotation: Any) -> list[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return [annotation]
    return [part for inner in get_args(annotation) for part in parts_in(inner)]


SPEC_PAIRS = spec_pairs(Spec)


def names_flags_or_keys(source: Source):
    return rules.names_flags_or_keys(source, SPEC_PAIRS)


RULES = {
    rule.__name__: rule
    for rule in (
        rules.imports_upward,
        rules.too_long,
        rules.too_many_parameters,
        rules.task_comparisons,
        rules.method_comparisons,
        names_flags_or_keys,
        rules.forbidden_names,
        rules.unsafe_or_misplaced,
    )
}


@pytest.mark.parametrize("rule", RULES)
def test_every_file_obeys(rule):
    assert [f"{source.path}: {problem}" for source in SOURCES for problem in RULES[rule](source)] == []


BROKEN = [
    ("imports_upward", "core/linalg.py", "from ..files.artifacts import atomic"),
    ("imports_upward", "core/omega/gram.py", "def f():\n    from ... import device"),
    ("imports_upward", "core/linalg.py", "import sublaplace_cli.run.job"),
    ("imports_upward", "results/gate.py", "from ..core import metrics"),
    ("imports_upward", "run/run.py", "from ..commands.fit import fit"),
    ("imports_upward", "cli/usage.py", "from ..run.run import Run"),
    ("imports_upward", "cli/usage.py", "from ..files.artifacts.atomic import write_text"),
    ("imports_upward", "api/library.py", "from ..cli.app import app"),
    ("too_long", "core/linalg.py", "x = 1\n" * 301),
    ("too_long", "core/linalg.py", "def f():\n" + "    x = 1\n" * 50),
    ("too_many_parameters", "core/linalg.py", "def f(a, b, c, d, *e, g, h, **i): ..."),
    ("task_comparisons", "run/run.py", "if spec.task == 'binary': ..."),
    ("task_comparisons", "run/run.py", "x = facts['task'] not in ('binary', 'multiclass')"),
    ("task_comparisons", "run/run.py", "match task:\n    case 'binary': ..."),
    ("method_comparisons", "run/run.py", "if kind == 'greedy': ..."),
    ("method_comparisons", "run/run.py", "if call.name in ('full', 'map'): ..."),
    ("method_comparisons", "run/run.py", "x = row['method'] != 'full'"),
    ("method_comparisons", "run/run.py", "x = 'full' in methods"),
    ("method_comparisons", "run/run.py", "match method:\n    case 'map': ..."),
    ("method_comparisons", "core/selectors/greedy.py", "x = problem.method == 'variance'"),
    ("names_flags_or_keys", "core/linalg.py", "raise ValueError('lower --k')"),
    ("names_flags_or_keys", "core/linalg.py", "raise ValueError(f'{x}: raise posterior.prior_precision')"),
    ("names_flags_or_keys", "core/linalg.py", "def f():\n    '''As in data.splits.train.n.'''"),
    ("names_flags_or_keys", "core/linalg.py", "x = 1  # see model.wrap"),
    ("forbidden_names", "core/team.py", ""),
    ("forbidden_names", "core/linalg.py", "def f(outer): ..."),
    ("forbidden_names", "core/linalg.py", "class Structure: ..."),
    ("forbidden_names", "core/linalg.py", "x = [q for q in y]"),
    ("forbidden_names", "core/linalg.py", "self._totals = 1"),
    ("unsafe_or_misplaced", "core/linalg.py", "torch.cuda.synchronize()"),
    ("unsafe_or_misplaced", "core/linalg.py", "from torch import cuda"),
    ("unsafe_or_misplaced", "distributed/ranks.py", "import torch.distributed as dist"),
    ("unsafe_or_misplaced", "cli/app.py", "print(1)"),
    ("unsafe_or_misplaced", "files/networks/checkpoints.py", "torch.load(path)"),
    ("unsafe_or_misplaced", "files/networks/checkpoints.py", "torch.load(path, weights_only=False)"),
    ("unsafe_or_misplaced", "files/networks/checkpoints.py", "pickle.load(file)"),
    ("unsafe_or_misplaced", "files/networks/checkpoints.py", "from pickle import loads"),
]
SOUND = [
    ("imports_upward", "commands/fit.py", "from ..run.run import Run"),
    ("too_long", "core/linalg.py", "def f():\n" + "    x = 1\n" * 49),
    ("too_many_parameters", "core/linalg.py", "class A:\n    def f(self, a, b, c, d, *, e, g, h): ..."),
    ("task_comparisons", "run/run.py", "x = catalog.TASKS[spec.task].labels"),
    ("method_comparisons", "run/run.py", "x = kind == 'map' or call.name == catalog.FULL"),
    ("method_comparisons", "core/selectors/greedy.py", "x = method == 'greedy'"),
    ("names_flags_or_keys", "cli/advice.py", "x = 'lower --k or raise posterior.prior_precision'"),
    ("names_flags_or_keys", "core/linalg.py", "x = 'a text -- with a dash, and posterior.variance'"),
    ("unsafe_or_misplaced", "files/networks/checkpoints.py", "torch.load(path, weights_only=True)"),
    ("too_many_parameters", "core/linalg.py", "@triton.jit\ndef f(a, b, c, d, e, g, h, i): ..."),
]


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN)
def test_the_rules_find_what_breaks_them(rule, path, text):
    assert list(RULES[rule](Source(PurePosixPath(path), text)))


@pytest.mark.parametrize(("rule", "path", "text"), SOUND)
def test_the_rules_pass_what_is_allowed(rule, path, text):
    assert list(RULES[rule](Source(PurePosixPath(path), text))) == []


def test_every_layer_is_known():
    assert {source.layer for source in SOURCES} == set(rules.BELOW)


def test_folders_stay_small():
    count = Counter(str(source.path.parent) for source in SOURCES)
    assert {folder: files for folder, files in count.items() if files > rules.MOST_FILES} == {}


def fields_of(name: str, classes: dict[str, ast.ClassDef]) -> int:
    """Fields of a record, with those that it inherits."""
    bases = [ast.unparse(base).rpartition(".")[2] for base in classes[name].bases]
    return rules.own_fields(classes[name]) + sum(fields_of(base, classes) for base in bases if base in classes)


def is_record(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    bases = {ast.unparse(base).rpartition(".")[2] for base in classes[name].bases}
    decorated = any("dataclass" in ast.unparse(one) for one in classes[name].decorator_list)
    return decorated or bool(bases & RECORD_BASES) or any(is_record(base, classes) for base in bases & set(classes))


def test_records_stay_small():
    classes = {record.name: record for source in SOURCES for record in source.classes}
    records = [name for name in classes if is_record(name, classes) and name not in NOT_A_RECORD]
    assert len(records) > 50
    fields = {name: fields_of(name, classes) for name in records}
    assert {name: count for name, count in fields.items() if count > rules.MOST_FIELDS} == {}


@pytest.mark.parametrize("what", ["classes", "constants"])
def test_names_are_unique_in_the_package(what):
    found: dict[str, list[str]] = {}
    for source in SOURCES:
        names = source.constants if what == "constants" else [record.name for record in source.classes]
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(str(source.path))
    assert len(found) > 50
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_few_functions_take_a_whole_run():
    found = []
    for source in SOURCES:
        for function in source.functions:
            first = rules.parameters(function)[:1]
            if first and first[0].annotation is not None and ast.unparse(first[0].annotation).strip("'") == "Run":
                found.append(f"{source.path}: {function.name}")
    assert len(found) <= MOST_FUNCTIONS_OF_A_RUN, found


def test_results_need_no_numerics():
    heavy = {"torch", "numpy", "pandas", "pydantic"}
    for source in SOURCES:
        if source.layer in ("results", "catalog", "errors", "sizes"):
            assert not {name.split(".")[0] for name in source.imports} & heavy, source.path


def test_every_reason_has_advice_and_is_given_somewhere():
    assert set(ADVICE) == set(Reason)
    assert all(ADVICE.values())
    texts = [source.text for source in SOURCES if source.path.name not in ("errors.py", "advice.py")]
    used = {name for text in texts for name in re.findall(r"\bReason\.([A-Z_0-9]+)", text)}
    assert used == {reason.name for reason in Reason}


def test_checkpoints_are_read_somewhere():
    assert [source.path for source in SOURCES if source.calls("torch.load")]


def loaded_by(module: str, *names: str) -> list[str]:
    code = f"import sys, {module}; print(*[m for m in {names} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return found.stdout.split()


def test_the_package_alone_loads_nothing_heavy():
    assert loaded_by("sublaplace_cli", "torch", "numpy", "pydantic", "typer", "click", "rich", "yaml") == []
    assert loaded_by("sublaplace_cli.errors", "sublaplace_cli.errors", "torch") == ["sublaplace_cli.errors"]


def test_the_command_line_loads_nothing_heavy():
    assert loaded_by("sublaplace_cli.cli.app", "torch", "numpy", "pydantic", "rich") == []


def test_optional_packages_are_imported_when_they_are_needed():
    optional = ("transformers", "tokenizers", "peft", "pyarrow", "PIL", "matplotlib", "curvlinops")
    assert loaded_by("sublaplace_cli.commands.runner", *optional) == []


@pytest.mark.parametrize(
    "entry",
    [
        *[method.entry for method in (*catalog.METHODS.values(), catalog.BY_NAME)],
        *[task.entry for task in catalog.TASKS.values()],
        *catalog.FORMATS.values(),
        *catalog.PICTURES.values(),
        *catalog.DATA_FORMATS.values(),
        *catalog.ARCHITECTURES.values(),
    ],
)
def test_catalog_entries_exist(entry):
    assert callable(catalog.load(entry))


def test_the_public_names_are_those_that_can_be_imported():
    public = sublaplace_cli.__all__
    assert public == sorted(public)
    for name in public:
        assert getattr(sublaplace_cli, name).__name__ == name
    source = next(source for source in SOURCES if str(source.path) == "__init__.py")
    for_type_checkers = {
        (alias.name, node.module)
        for node in source.nodes
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert for_type_checkers == set(sublaplace_cli._MODULES.items())
    assert set(public) == set(sublaplace_cli._MODULES)
    for name, module in sublaplace_cli._MODULES.items():
        assert getattr(importlib.import_module(f"sublaplace_cli.{module}"), name) is getattr(sublaplace_cli, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = sublaplace_cli.no_such_name


def test_the_guide_lists_the_public_names():
    guide = (ROOT / "sublaplace_cli/guide/python.md").read_text()
    section = guide.partition("<!-- api -->")[2].partition("<!-- /api -->")[0]
    first_cells = re.findall(r"^\|([^|]*)\|", section, flags=re.MULTILINE)
    named = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(sublaplace_cli.__all__)


def test_only_agreed_names_at_the_top():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    top = {line.split("/")[0] for line in tracked.stdout.splitlines()}
    agreed = {"sublaplace_cli", "tests", "examples", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} <= agreed
