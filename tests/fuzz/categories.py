"""The categories of inputs: which files of the valid project are changed, and which command reads them."""

from __future__ import annotations

import json
import typing
import zipfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from fuzz.base import BASELINE, CHOICE, FORMATS, POSTERIOR, RUN, read_tree
from fuzz.case import Case
from fuzz.changes import Change
from fuzz.draws import damage, edits, forgeries, in_place, npy_changes, numbers, paths_of, positions, texts, values
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from sublaplace_cli.cli.settings import COMMANDS, Settings
from sublaplace_cli.files.networks.aten_operators import ATEN

EVALUATE = ["evaluate", *CHOICE]
OPERATORS = [
    f"torch.ops.aten.{name}.{overload}"
    for name in sorted(ATEN)
    if hasattr(torch.ops.aten, name)
    for overload in getattr(torch.ops.aten, name).overloads()
]

GRAPH = "models/model.json"
SPEC_NUMBERS = [
    "posterior.prior_precision",
    "posterior.noise_variance",
    "data.splits.train.n",
    "data.splits.train.seed",
]
LIKELY_SPEC: list[tuple[str, Any]] = [
    ("task", "binary"), ("task", "multiclass"), ("posterior.noise_variance", "auto"),
    ("posterior.noise_variance", "marglik"), ("posterior.noise_variance", {"from": "test"}),
    ("data.classes", ["0", "1"]), ("data.classes", [True, False]), ("data.columns.input", {"a": "a", "b": "b"}),
    ("posterior.prior_precision", "marglik"), ("posterior.prior_precision", {"0.*": 1e-90, "*": "marglik"}),
    ("posterior.prior_precision", {"tune": "nll", "split": "test"}), ("posterior.rescale", "hybrid"),
    ("posterior.rescale", "scale"), ("data.splits.train.rows", "0:1"), ("data.splits.train.rows", "::-1"),
    ("data.splits.test.rows", "5:9999999999999999999"), ("data.splits.train.n", 3),
    ("data.splits.test.same_as", "train"),
    ("data.splits.reference", {"same_as": "test"}), ("data.splits.validation", {"rows": "0:4"}),
    ("data.splits.ood", {"rows": "0:4"}), ("data.splits.ood", {"near": {"path": "data.csv"}, "far": {"rows": "5:"}}),
    ("data.standardise", {"input": "from-train", "target": "none"}), ("data.transforms", [{"scale": 1e60}]),
    ("data.standardise.input", {"mean": [0, 0, 0], "std": [1e-90, 1, 1e90]}),
    ("data.transforms", [{"permute": [1, 0]}]),
    ("gate", {"w2": {"max": 0.02}}), ("gate", {"nll": {"max_regression": "5%"}}),
    ("oracle", {"predictions": "data.csv", "array": "y0"}), ("oracle", {"weights": {"path": "model.safetensors"}}),
    ("ensemble", {"checkpoints": ["model.safetensors", "model.pt"]}), ("model.weights.path", "model.pt"),
    ("model.weights.rename", {"0": "1"}), ("model.wrap", {"binary-logodds": {"classes": [0]}}),
    ("model.build", {"import": "canary:run"}), ("model.build.args.hidden", [8, 8]), ("model.build.args.act", "relu"),
]  # fmt: skip
LIKELY_OPTIONS = {
    "--method": [
        "gradient,full",
        "map",
        "greedy",
        "names:*.weight",
        "names:[a-z0-9]*",
        "random",
        "diagonal,norm",
        "kfac",
    ],
    "--k": ["5", "1,5,41", "auto", "42", "0"],
    "--format": ["json", "github", "table", "markdown", "junit", "csv", "tsv", "jsonl"],
    "--spec": ["sublaplace.yaml", "npz.yaml", "exported.yaml", "parquet.yaml"],
    "--checkpoint": ["model.pt", "model.safetensors", "*.pt", "model.pt2"],
    "--output": ["out.json", "out.csv", "out.md", "data.csv", "run/run.json", "sublaplace.yaml", "nowhere/x.json"],
    "--predictions": ["p.csv", "p.jsonl", "p.safetensors", "model.safetensors"],
    "--dtype": ["float32", "float64"],
    "--gram-dtype": ["float32", "split"],
    "--kernels": ["triton", "torch", "auto"],
    "--rescale": ["none", "scale", "hybrid"],
    "--full": ["exact", "none", "bracket"],
    "--conformal": ["0.5", "0.001", "0.99999999999999", "1", "nan"],
    "--conformal-by": ["class"],
    "--full-rows": ["1", "4", "10000000"],
    "--fail-if": ["w2 > 0.1", "nll < 1e300", "w2 > nan"],
    "--max-regression": ["w2=5%", "nll=-1"],
    "--baseline": [BASELINE],
    "--posterior": [POSTERIOR],
    "--run-dir": [RUN, "other", "."],
    "--pool": ["2k", "paper", "7"],
    "--score": ["unweighted"],
    "--reference": ["train", "test"],
    "--retain": ["0.5", "1", "0"],
    "--samples": ["3", "100000000000"],
    "--seed": ["0", "1", "18446744073709551616"],
    "--memory": ["64MiB", "1KiB", "0"],
    "--max-artifact": ["0", "1KiB"],
    "--plot": ["p.png", "p.svg"],
    "--plot-kind": ["curves", "calibration", "risk-coverage", "scatter", "map", "ood"],
    "--report": ["r.html"],
    "--split": ["test"],
    "--indices": ["indices.txt", "indices.npy"],
    "--device": ["cpu", "cuda", "cuda:7", "meta"],
}


def set_value(path: list[Any], value: Any, form: str = "json") -> Change:
    return {"do": "tree", "path": path, "action": "set", "value": value, "form": form}


def cases(
    category: str, name: str, change: SearchStrategy[Change], words: list[str], same: bool = False
) -> SearchStrategy[Case]:
    """One to three changes of one file."""
    changes = st.lists(change, min_size=1, max_size=3)
    return changes.map(lambda found: Case(category, words, [(name, one) for one in found], same))


def specs(base: Path) -> SearchStrategy[Case]:
    names = ["sublaplace.yaml", "exported.yaml", *(f"{form}.yaml" for form in FORMATS)]
    tricks = ["&a [*a]", "- " * 3000, "? ", "!!python/object:os.system {}", "<<: *a\n", "{" * 2000]

    def of(name: str) -> SearchStrategy[Case]:
        tree = read_tree((base / name).read_bytes(), "yaml")
        text = st.builds(
            lambda at, text: {"do": "insert", "at": at, "text": text}, positions, st.sampled_from(tricks) | texts
        )
        likely = st.sampled_from(LIKELY_SPEC).map(lambda pair: set_value(pair[0].split("."), pair[1], "yaml"))
        number = st.builds(
            lambda path, value: set_value(path.split("."), value, "yaml"), st.sampled_from(SPEC_NUMBERS), numbers
        )
        change = st.one_of(likely, likely, number, edits(tree, "yaml"), edits(tree, "yaml"), damage(), text, in_place())
        return cases("spec", name, change, [*EVALUATE, "--spec", name])

    return st.sampled_from(names).flatmap(of)


def checkpoints(base: Path) -> SearchStrategy[Case]:
    content = (base / "model.safetensors").read_bytes()
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    headers = edits(head).map(lambda change: {"do": "header", "changes": [change]})
    pickles = damage().map(lambda change: {"do": "member", "name": "data.pkl", "changes": [change]})
    words = [*EVALUATE, "--checkpoint"]
    return st.one_of(
        cases("checkpoint", "model.safetensors", headers | damage() | in_place(), [*words, "model.safetensors"]),
        cases("checkpoint", "model.pt", pickles | damage() | in_place(), [*words, "model.pt"]),
        cases("checkpoint", "model.pt", pickles | damage(), [*words, "model.pt"]),
    )


def csv_changes(base: Path) -> SearchStrategy[Change]:
    cells = (base / "data.csv").read_text().replace("\n", ",").split(",")[:-1]
    cell = st.sampled_from(cells)
    odd = texts | numbers.map(str) | st.sampled_from(['"', '"a\nb"', ",", ",,,", "\n", "\r", "\ufeff", "1;2"])
    return st.builds(lambda old, new: {"do": "replace", "old": old, "new": new}, cell, odd)


def data(base: Path) -> SearchStrategy[Case]:
    content = (base / "data.safetensors").read_bytes()
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    inside = npy_changes() | damage()
    own: dict[str, SearchStrategy[Change]] = {
        "csv": csv_changes(base),
        "npy": npy_changes(),
        "npz": st.builds(
            lambda name, change, new: {"do": "member", "name": name, "changes": [change], "new_name": new},
            st.sampled_from(["x.npy", "y.npy"]), inside, st.none() | texts.filter(lambda text: text.isprintable()),
        ),
        "safetensors": edits(head).map(lambda change: {"do": "header", "changes": [change]}),
        "parquet": damage(),
        "arrow": damage(),
    }  # fmt: skip

    def of(form: str) -> SearchStrategy[Case]:
        change = st.one_of(own[form], own[form], damage(), in_place())
        return cases("data", f"data.{form}", change, [*EVALUATE, "--spec", f"{form}.yaml"])

    return st.sampled_from(FORMATS).flatmap(of)


def artifacts(base: Path) -> SearchStrategy[Case]:
    names = sorted(path.name for path in (base / RUN).glob("*.safetensors"))
    words = [*EVALUATE, "--run-dir", RUN]

    def of(name: str) -> SearchStrategy[Case]:
        read_before = [(f"{RUN}/{other}", {"do": "delete"}) for other in names if other > name and "pred" in other]
        forged = forgeries(base / RUN / name).map(lambda change: [(f"{RUN}/{name}", change)])
        damaged = (damage() | in_place()).map(lambda change: [(f"{RUN}/{name}", change)])
        without = st.sampled_from([[], read_before])
        return st.one_of(
            st.builds(lambda more, one: Case("artifact", words, [*more, *one]), without, forged),
            st.builds(lambda more, one: Case("artifact", words, [*more, *one], same=True), without, damaged),
        )

    records = ["run.json", ".lock", ".gitignore", "jacobians-train.safetensors.part.json", "evaluation.json"]
    other = st.sampled_from(records).flatmap(
        lambda name: cases("artifact", f"{RUN}/{name}", in_place(), words, same=True)
    )
    return st.one_of(st.sampled_from(names).flatmap(of), st.sampled_from(names).flatmap(of), other)


def posteriors(base: Path) -> SearchStrategy[Case]:
    words = ["evaluate", "--json", "--memory", CHOICE[-1], "--posterior", POSTERIOR]
    forged = cases("posterior", POSTERIOR, forgeries(base / POSTERIOR), words)
    return st.one_of(forged, forged, cases("posterior", POSTERIOR, damage() | in_place(), words))


def exported(base: Path) -> SearchStrategy[Case]:
    with zipfile.ZipFile(base / "model.pt2") as archive:
        trees = {
            name.split("/", 1)[1]: json.loads(archive.read(name))
            for name in archive.namelist()
            if name.endswith("json")
        }
    graph = trees[GRAPH]["graph_module"]["graph"]
    before = ["graph_module", "graph"]
    # Most of the file is never read: aim at the calls, their arguments and the shapes.
    paths = [path for key in ("nodes", "tensor_values", "inputs") for path in paths_of(graph[key], (key,))]
    numbered = [path for path in paths if path[-1] in ("as_int", "as_float", "as_bool") or "as_ints" in path[-2:-1]]
    named = [path for path in paths if path[-1] == "name" and path[0] == "nodes"]
    names = sorted(graph["tensor_values"])

    def aimed(places: list[Any], drawn: SearchStrategy[Any]) -> SearchStrategy[Change]:
        return st.builds(lambda path, value: set_value([*before, *path], value), st.sampled_from(places), drawn)

    calls = [("nodes", number, "target") for number in range(len(graph["nodes"]))]
    change = st.one_of(
        aimed(numbered, numbers),
        aimed(numbered, st.integers(-3, 40)),
        aimed(named, st.sampled_from(names)),
        aimed(calls, st.sampled_from(OPERATORS)),
        aimed(paths, values | st.lists(numbers, max_size=4)),
        edits(trees[GRAPH]),
    )
    forged = st.lists(change, min_size=1, max_size=3).map(lambda many: {"do": "member", "name": GRAPH, "changes": many})
    others = st.sampled_from(sorted(set(trees) - {GRAPH})).flatmap(
        lambda name: edits(trees[name]).map(lambda one: {"do": "member", "name": name, "changes": [one]})
    )
    words = [*EVALUATE, "--spec", "exported.yaml"]
    return cases("exported", "model.pt2", st.one_of(forged, forged, others, damage(), in_place()), words)


def side_files(base: Path) -> SearchStrategy[Case]:
    """A baseline and a selection made elsewhere."""
    baseline = json.loads((base / BASELINE).read_text())
    gate = [*EVALUATE, "--baseline", BASELINE, "--max-regression", "w2=5%"]
    fit = ["fit", "--json", "--memory", CHOICE[-1], "--indices"]
    lines = st.builds(lambda at, text: {"do": "insert", "at": at, "text": f"{text}\n"}, positions, texts | numbers)
    return st.one_of(
        cases("side file", BASELINE, edits(baseline) | edits(baseline) | damage() | in_place(), gate),
        cases("side file", "indices.txt", lines | damage() | in_place(), [*fit, "indices.txt"]),
        cases("side file", "indices.npy", npy_changes() | damage() | in_place(), [*fit, "indices.npy"]),
    )


def options(_base: Path) -> SearchStrategy[Case]:
    hints = typing.get_type_hints(Settings, include_extras=True)
    flags, switches = [], []
    for name, hint in hints.items():
        kind, text = typing.get_args(hint)
        (switches if kind is bool else flags).append((text.flags or (f"--{name.replace('_', '-')}",))[0])
    flags.remove("--allow-code")
    printable = texts.filter(lambda text: "\x00" not in text)  # no argument of a process can hold it
    odd = printable | numbers.map(str)
    likely = st.sampled_from(sorted(LIKELY_OPTIONS)).flatmap(
        lambda flag: st.sampled_from(LIKELY_OPTIONS[flag]).map(lambda value: [flag, value])
    )
    pair = st.tuples(st.sampled_from(flags), odd | st.sampled_from(list(chain(*LIKELY_OPTIONS.values())))).map(list)
    switch = st.sampled_from(switches).map(lambda flag: [flag])
    start = st.sampled_from([EVALUATE, ["evaluate", "--memory", CHOICE[-1]], *([name] for name in COMMANDS), []])
    return st.builds(
        lambda first, more, wild: Case("option", [*first, *chain(*more, *wild)]),
        start,
        st.lists(likely | likely | switch, max_size=4),
        st.lists(pair | odd.map(lambda one: [one]), max_size=1),
    )


CATEGORIES: dict[str, Callable[[Path], SearchStrategy[Case]]] = {
    "spec": specs,
    "checkpoint": checkpoints,
    "data": data,
    "artifact": artifacts,
    "posterior": posteriors,
    "exported": exported,
    "side file": side_files,
    "option": options,
}
