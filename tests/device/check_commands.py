"""The commands from their settings to their results, on the second device and on the CPU; prints what differs as JSON.

    python tests/device/check_commands.py FOLDER

In a process of its own, because registering a device is for good.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "device"), str(ROOT / "tests" / "cli")]

import curvlinops.kfac  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from cases import CASES  # noqa: E402
from cli_tools import Project, mlp, save  # noqa: E402
from commands.in_process import Notes, result_of  # noqa: E402
from second_device import SecondDevice, install  # noqa: E402

from sublaplace_cli import device as devices  # noqa: E402
from sublaplace_cli.catalog import METHODS  # noqa: E402
from sublaplace_cli.cli.settings import Settings  # noqa: E402
from sublaplace_cli.commands.plan import Estimate  # noqa: E402
from sublaplace_cli.core.network.probe import Probe  # noqa: E402
from sublaplace_cli.run.identity import network  # noqa: E402

REFERENCES = [name for name, method in METHODS.items() if method.entry is None]
ALL = ",".join([*(name for name in METHODS if name != "temperature"), "names:*bias"])  # of a regression
PLACES = ("seconds", "artifacts", "device", "provenance", "checkpoints")
LARGEST = 12_000  # bytes: less than a pass or the rows of a layer take, more than the matrices do
NETS = """
from cases import CASES

def make(name):
    return next(case for case in CASES if case.name == name).make()[0]
"""


def project_of(folder: Path, name: str) -> Project:
    """One of `cases.py` on disk, built by an import."""
    case = next(case for case in CASES if case.name == name)
    project = Project(folder, case.task, case.n_outputs)
    model, rows, targets, *_ = case.make()
    (folder / "nets.py").write_text(NETS)
    save(model, folder / "model.safetensors")
    project.npz(x=np.asarray(rows), y=np.asarray(targets))
    splits = {"train": {"rows": "0:12"}, "reference": {"rows": "12:16"}, "test": {"rows": "16:"}}
    build = {"import": "nets:make", "args": {"name": name}}
    weights = {"path": "model.safetensors"}
    return project.use(model={"build": build, "weights": weights}, data={**project.spec["data"], "splits": splits})


def with_oracle(project: Project) -> Project:
    """… whose oracle is another network, as are two of an ensemble, and whose inputs and targets are standardised."""
    for seed, name in enumerate(("oracle", "first", "second"), start=3):
        save(mlp([3, 8, 1], seed), project.folder / f"{name}.safetensors")
    standardise = {"input": "from-train", "target": "from-train"}
    return project.use(
        data={**project.spec["data"], "standardise": standardise},
        oracle={"weights": {"path": "oracle.safetensors"}},
        ensemble={"checkpoints": ["first.safetensors", "second.safetensors"]},
    )


def tuned(folder: Path) -> list[Project]:
    """Priors and noise that are left to the data."""
    by_evidence = Project(folder / "tuned").use(
        posterior={"prior_precision": {"0.*": "marglik", "*": "marglik"}, "noise_variance": "marglik"}
    )
    by_nll = Project(folder / "tuned-by-nll")
    splits = {"train": {"rows": "0:15"}, "validation": {"rows": "15:22"}, "test": {"rows": "22:"}}
    tune = {"tune": "nll", "split": "validation"}
    by_nll.use(data={**by_nll.spec["data"], "splits": splits}, posterior={"prior_precision": tune})
    return [by_evidence, by_nll]


@contextmanager
def probes_not_counted(mode: SecondDevice) -> Iterator[None]:
    """Probes of a few rows run on the CPU on purpose, so that their numbers are those of every device."""

    def uncounted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            before = mode.on_cpu.copy()
            try:
                return work(*args)
            finally:
                mode.on_cpu = before

        return call

    within = classmethod(uncounted(Probe.within.__func__))
    at_rows = uncounted(network.rounded_outputs)
    with mock.patch.object(Probe, "within", within), mock.patch.object(network, "rounded_outputs", at_rows):
        yield


def short_of_memory(folder: Path, device: str) -> Any:
    """A run on a device that has no room for a large tensor: what it gave, and how often it was refused."""
    project = project_of(folder / f"short-{device}", "conv-binary")
    settings = Settings(
        spec=project.folder / "sublaplace.yaml",
        device=device,
        dtype="float64",
        method="gradient,last-k",
        k="3,7",
        memory="400kB",
        allow_code=("nets",),
    )
    notes = Notes()
    with mock.patch.object(Estimate, "expectation", return_value=None):  # it may be refused too, and says nothing
        result = result_of("evaluate", settings, notes)
    kept = {key: result[key] for key in ("rows", "full", "noise_variance")}
    return kept, [note for note in notes.said if "out of memory" in note]


# By project: the calls, in this order in one run folder, so that later ones read what earlier ones stored.
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "table": [
        ("jacobians", {}),
        ("select", {"method": "greedy", "k": "3"}),
        ("fit", {"method": "gradient", "k": "30"}),
        ("evaluate", {"method": ALL, "k": "3,30", "predictions": "csv"}),
        ("evaluate", {"method": "gradient,greedy", "k": "3,5"}),
        ("evaluate", {"method": ALL.replace("full,", ""), "k": "5", "rescale": "hybrid"}),
        ("evaluate", {"method": "gradient,greedy", "k": "6", "rescale": "scale", "full": "none"}),
        ("evaluate", {"method": "greedy", "k": "auto", "retain": 0.8}),
        ("evaluate", {"method": "gradient", "k": "4", "samples": 3, "predictions": "csv"}),
        ("evaluate", {"method": "gradient", "k": "4", "full": "bracket", "full_rows": 7}),
        ("evaluate", {"method": "gradient", "k": "4", "gram_dtype": "float32", "run_dir": "single"}),
        ("evaluate", {"method": "gradient", "k": "4", "gram_dtype": "split", "run_dir": "split"}),
        ("evaluate", {"method": "gradient,random", "k": "4", "seeds": (1, 2), "run_dir": "seeds"}),
        ("fit", {"indices": "chosen.txt"}),
        ("evaluate", {"posterior": "posterior-gradient-k30.safetensors", "samples": 2, "predictions": "jsonl"}),
    ],
    "tuned": [
        ("evaluate", {"method": "gradient", "k": "4"}),
        ("select", {"method": "variance", "k": "4", "pool": "20", "reference": "test", "run_dir": "other"}),
    ],
    "tuned-by-nll": [
        ("evaluate", {"method": "gradient", "k": "4"}),
        ("evaluate", {"method": "gradient", "k": "4", "conformal": 0.8, "predictions": "csv"}),
    ],
    "conv-multiclass": [
        ("jacobians", {"scores_only": True}),
        ("evaluate", {"method": "gradient,diagonal", "k": "5,50", "predictions": "jsonl"}),
        ("evaluate", {"method": "gradient,temperature,norm,full", "k": "5", "rescale": "calibrated", "folds": 2}),
        ("evaluate", {"method": "gradient", "k": "5", "link": "mean-field"}),
        ("evaluate", {"method": "last-k", "k": "7", "max_artifact": "10kB", "memory": "300kB", "run_dir": "small"}),
    ],
    "conv-binary": [("evaluate", {"method": "gradient,greedy,kfac", "k": "9"})],
    "many-classes": [("evaluate", {"method": "gradient,greedy", "k": "5,200"})],
    "attention": [("evaluate", {"method": "gradient", "k": "9", "score": "unweighted", "reference": "test"})],
}


def results(project: Project, device: str, report: Notes) -> list[Any]:
    """What the calls of a project gave on this device, without times, places and the name of the device."""
    found: list[Any] = []
    for i, (command, options) in enumerate(CALLS[project.folder.name]):
        options = {"run_dir": "run", **options}
        options["run_dir"] = project.folder / f"{options['run_dir']}-{device}"
        if "indices" in options:
            (project.folder / options["indices"]).write_text("5\n0\n7\n")
            options["indices"] = project.folder / options["indices"]
        if "posterior" in options:  # of an earlier call; the option stands alone
            options["posterior"] = options.pop("run_dir") / options["posterior"]
        if "predictions" in options:
            options["predictions"] = project.folder / f"{device}-{i}.{options['predictions']}"
        settings = Settings(
            spec=project.folder / "sublaplace.yaml", device=device, dtype="float64", allow_code=("nets",), **options
        )
        result = result_of(command, settings, report)
        found.append({key: value for key, value in result.items() if key not in PLACES})
        found.append(sorted(result["artifacts"]))
        if "predictions" in options:
            found.append(options["predictions"].read_text())
    return [*found, [re.sub(r", about .* left$", "", note) for note in report.said]]


def differences(found: Any, expected: Any, where: str = "") -> dict[str, Any]:
    """Places at which two results differ by more than 1e-12, relative to the number."""
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        pairs = [(f"{where}/{key}", found[key], expected[key]) for key in expected]
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = [(f"{where}/{i}", a, b) for i, (a, b) in enumerate(zip(found, expected, strict=True))]
    elif isinstance(expected, float) and isinstance(found, float):
        return {} if abs(found - expected) <= 1e-12 * max(abs(expected), 1e-3) else {where: [found, expected]}
    else:
        return {} if found == expected else {where: [found, expected]}
    return {place: pair for key, a, b in pairs for place, pair in differences(a, b, key).items()}


def pretended(choose: Callable[[str], torch.device], device: torch.device) -> Callable[[str], torch.device]:
    """`--device cuda` means the second device."""
    return lambda name: device if name == "cuda" else choose(name)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    devices.choose = pretended(devices.choose, install())
    # curvlinops makes a generator on the device, of which nothing is drawn here; this device has none.
    curvlinops.kfac.Generator = lambda device: torch.Generator()
    many = Project(folder / "many-classes", "multiclass", 40)
    projects = [with_oracle(Project(folder / "table")), *tuned(folder), many]
    made = {project.folder.name for project in projects}
    projects += [project_of(folder / name, name) for name in CALLS if name not in made]
    on_cpu: dict[str, list[str]] = {}
    said, found = [], {}
    for project in projects:
        notes = Notes()
        expected = results(project, "cpu", Notes())
        with SecondDevice() as mode, probes_not_counted(mode):
            found[project.folder.name] = differences(results(project, "cuda", notes), expected)
        on_cpu[project.folder.name] = sorted(mode.on_cpu)
        said += notes.said
    enough, _ = short_of_memory(folder, "cpu")
    with SecondDevice(largest=LARGEST) as mode:
        short, complaints = short_of_memory(folder, "cuda")
    found["short of memory"] = differences(short, enough)
    memory = {"refused": mode.refused, "complaints": complaints}
    print(json.dumps({"differences": found, "on_cpu": on_cpu, "notes": said, "memory": memory}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
