"""Rules of the source code, each a function from one file to its problems; `test_architecture` applies them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath

from sublaplace_cli import catalog

MOST_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS, MOST_FILES, MOST_FIELDS = 300, 50, 7, 12, 10
FORBIDDEN = {
    *("following", "given", "opening", "spreads", "staging", "totals", "product", "team", "shared"),
    *("outer", "structure", "vigil", "q"),
}
ANYWHERE = {"errors", "catalog", "sizes", "reporter", "signals", "device", "plain_text", "json_files"}
# What each layer may import of the package, besides itself: a folder, or only some of its modules.
BELOW: dict[str, set[str]] = {
    "errors": set(),
    "plain_text": set(),
    "sizes": {"errors"},
    "json_files": {"sizes"},
    "signals": set(),
    "catalog": {"errors"},
    "device": {"errors"},
    "reporter": {"core.progress"},
    "core": {"errors"},
    "architectures": {"errors"},
    "results": {"errors", "catalog", "sizes", "plain_text", "json_files"},
    "render": {"results"} | ANYWHERE,
    "files": {"core", "results", "architectures"} | ANYWHERE,
    "distributed": {"core"} | ANYWHERE,
    "run": {"core", "files", "results", "__version__"} | ANYWHERE,
    "commands": {"run", "core", "files", "results", "architectures"} | ANYWHERE,
    "guide": set(),
    "cli": {
        "guide",
        "commands",
        "run.job",
        "run.method_calls",
        "render",
        "results",
        "distributed",
        "files.spec",
        "__version__",
    }
    | ANYWHERE,
    "api": {"commands", "run", "files", "core", "results", "architectures"}
    | {"cli.deliver", "cli.settings", "cli.usage"}
    | ANYWHERE,
    "__init__": {"api", "architectures", "core.features", "core.likelihoods", "errors"},
    "__main__": {"cli", "distributed", "signals"},
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPARED = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
# Method names that are ordinary words as well: a kind of picture, a metric, a key. Comparing anything with the others
# is comparing a method; with these, only where what is compared is called one of METHOD_WORDS.
ORDINARY = {"variance", "random", "full", "map", "norm", "diagonal", "constant", "gradient", "ensemble"}
METHOD_WORDS = {"method", "methods", "name", "names", "selector", "reference"}


@dataclass(frozen=True)
class Source:
    """One file of the package."""

    path: PurePosixPath  # inside the package
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    @cached_property
    def layer(self) -> str:
        return self.path.parts[0].removesuffix(".py")

    @cached_property
    def imports(self) -> set[str]:
        """Absolute dotted names of everything that it imports, wherever in it."""
        package = ("sublaplace_cli", *self.path.parts[:-1])
        names = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
                module = ".".join(part for part in (base, node.module) if part)
                names |= {f"{module}.{alias.name}" for alias in node.names}
        return names

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in self.nodes if isinstance(node, FUNCTIONS)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def constants(self) -> list[str]:
        """Names in capitals at the top of the module."""
        names = []
        for node in ast.parse(self.text).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names += [one.id for target in targets if target is not None for one in ast.walk(target) if _is_name(one)]
        return [name for name in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name)]

    @cached_property
    def texts(self) -> list[str]:
        """String literals, docstrings and comments."""
        strings = [node.value for node in self.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [*strings, *(token.string for token in tokens if token.type == tokenize.COMMENT)]

    def calls(self, name: str) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == name]


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """All parameters, without `self` and `cls`."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    stars = [star for star in (arguments.vararg, arguments.kwarg) if star is not None]
    return [one for one in [*named, *stars] if one.arg not in ("self", "cls")]


def imports_upward(source: Source) -> Iterator[str]:
    """Imports of a layer that is not below."""
    for name in source.imports:
        module = name.removeprefix("sublaplace_cli.")
        if module == name or module.split(".")[0] == source.layer:
            continue
        if not any(f"{module}.".startswith(f"{allowed}.") for allowed in BELOW[source.layer]):
            yield f"imports {name}"


def too_long(source: Source) -> Iterator[str]:
    if (lines := len(source.text.splitlines())) > MOST_LINES:
        yield f"has {lines} lines"
    for function in source.functions:
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MOST_FUNCTION_LINES:
            yield f"{function.name} has {lines} lines"


def too_many_parameters(source: Source) -> Iterator[str]:
    """Of functions; a kernel takes every pointer, size and stride one by one."""
    for function in source.functions:
        if "triton.jit" in map(ast.unparse, function.decorator_list):
            continue
        if (count := len(parameters(function))) > MOST_PARAMETERS:
            yield f"{function.name} takes {count} parameters"


def own_fields(record: ast.ClassDef) -> int:
    fields = [node for node in record.body if isinstance(node, ast.AnnAssign)]
    return sum("ClassVar" not in ast.unparse(node.annotation) for node in fields)


def task_comparisons(source: Source) -> Iterator[str]:
    """Comparisons of anything called `task` with texts."""
    for expression, operands, texts in _comparisons(source):
        if texts and "task" in {_last_word(operand) for operand in operands}:
            yield expression


def method_comparisons(source: Source) -> Iterator[str]:
    """Comparisons with a method's name, outside the catalog and the method's own file."""
    module = ".".join(("sublaplace_cli", *source.path.with_suffix("").parts))
    own = {name for name, method in catalog.METHODS.items() if method.entry.partition(":")[0] == module}
    for expression, operands, texts in _comparisons(source):
        found = (texts & set(catalog.METHODS)) - own
        is_method = bool({_last_word(operand) for operand in operands} & METHOD_WORDS)
        if source.path.name != "catalog.py" and (found - ORDINARY or (found and is_method)):
            yield expression


def _comparisons(source: Source) -> Iterator[tuple[str, list[ast.expr], set[str]]]:
    """(text, what is compared, the texts it is compared with) of every comparison and every `match`."""
    for node in source.nodes:
        if isinstance(node, ast.Compare) and all(isinstance(op, COMPARED) for op in node.ops):
            operands = [node.left, *node.comparators]
            texts = set().union(*map(_literals, operands))
            yield f"line {node.lineno}: {ast.unparse(node)}", operands, texts
        elif isinstance(node, ast.Match):
            values = [one.value for case in node.cases for one in ast.walk(case) if isinstance(one, ast.MatchValue)]
            yield f"line {node.lineno}: match", [node.subject], set().union(*map(_literals, values))


def _literals(node: ast.expr) -> set[str]:
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return {one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def _last_word(node: ast.expr) -> str | None:
    """`method` of method, row.method, row["method"] and row.get("method")."""
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word) | ast.Subscript(slice=ast.Constant(value=str(word))):
            return word
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(word)), *_]):
            return word
        case ast.Call(func=ast.Attribute(value=inner)):  # method.lower()
            return _last_word(inner)
    return None


def names_flags_or_keys(source: Source, keys: set[str]) -> Iterator[str]:
    """Flags and dotted spec keys in the texts of core, which knows neither."""
    if source.layer == "core":
        for text in source.texts:
            flags = re.findall(r"(?<![\w-])--[a-z][\w-]*", text)
            dotted = [key for key in re.findall(r"[a-z_]+(?=\.[a-z_])(?:\.[a-z_]+)+", text) if _spec_pairs(key) & keys]
            yield from (f"names {found}" for found in [*flags, *dotted])


def _spec_pairs(key: str) -> set[str]:
    words = key.split(".")
    return {f"{a}.{b}" for a, b in pairwise(words)}


def forbidden_names(source: Source) -> Iterator[str]:
    """Modules, classes, functions, parameters, variables and attributes with a forbidden name."""
    names = [part.removesuffix(".py") for part in source.path.parts]
    for node in source.nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.append(name)
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                names.append(name)
            case ast.MatchAs(name=str(name)):
                names.append(name)
    yield from (f"the name {name}" for name in names if name.strip("_").lower() in FORBIDDEN)


def unsafe_or_misplaced(source: Source) -> Iterator[str]:
    """CUDA, process groups, printing and pickles outside the one file for each."""
    path, used = str(source.path), {ast.unparse(node) for node in source.nodes if isinstance(node, ast.Attribute)}
    for prefix, home in {"torch.cuda": "device.py", "torch.distributed": "distributed/process_group.py"}.items():
        if path != home and any(f"{name}.".startswith(f"{prefix}.") for name in used | source.imports):
            yield f"uses {prefix}"
    if path != "cli/console.py" and source.calls("print"):
        yield "prints"
    for call in source.calls("torch.load"):
        if not any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in call.keywords):
            yield ast.unparse(call)
    loads = {"pickle.load", "pickle.loads", "pickle.Unpickler"}
    if (found := loads & (used | source.imports)) or any(name.startswith("dill") for name in source.imports):
        yield f"unpickles: {found}"
