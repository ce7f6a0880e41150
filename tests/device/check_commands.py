"""The commands from their settings to their results, on the second device and on the CPU; prints what differs as JSON.

    python tests/device/check_commands.py FOLDER

In a process of its own, because registering a device is for good.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "device"), str(ROOT / "tests" / "cli")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from cases import CASES  # noqa: E402
from cli_tools import Project, save  # noqa: E402
from second_device import SecondDevice, install  # noqa: E402

from sublaplace_cli import device as devices  # noqa: E402
from sublaplace_cli.formats import json_text  # noqa: E402
from sublaplace_cli.steps.commands import run_command  # noqa: E402
from sublaplace_cli.steps.settings import Settings, Silent  # noqa: E402

ALL = "gradient,greedy,subnet-diagonal,last-k,random,magnitude,neural-linear,names:*bias,full,map,diagonal"
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
    """… whose oracle is another network, and whose inputs and targets are standardised."""
    save(project.model, project.folder / "oracle.safetensors")
    standardise = {"input": "from-train", "target": "from-train"}
    return project.use(
        data={**project.spec["data"], "standardise": standardise},
        oracle={"weights": {"path": "oracle.safetensors"}},
    )


# By project: the calls, in this order in one run folder, so that later ones read what earlier ones stored.
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "table": [
        ("jacobians", {}),
        ("select", {"method": "greedy", "k": "3"}),
        ("fit", {"method": "gradient", "k": "30"}),
        ("evaluate", {"method": ALL, "k": "3,30", "predictions": "csv"}),
        ("evaluate", {"method": "gradient,greedy", "k": "3,5"}),
    ],
    "conv-multiclass": [
        ("jacobians", {"scores_only": True}),
        ("evaluate", {"method": "gradient,diagonal", "k": "5,50", "predictions": "jsonl"}),
        ("evaluate", {"method": "last-k", "k": "7", "max_artifact": "10kB", "memory": "300kB", "run_dir": "small"}),
    ],
    "attention": [("evaluate", {"method": "gradient", "k": "9", "score": "unweighted", "reference": "test"})],
}


class Notes(Silent):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def results(project: Project, device: str, report: Notes) -> list[Any]:
    """What the calls of a project gave on this device, without times, places and the name of the device."""
    found: list[Any] = []
    for i, (command, options) in enumerate(CALLS[project.folder.name]):
        options = {"run_dir": "run", **options}
        options["run_dir"] = project.folder / f"{options['run_dir']}-{device}"
        if "predictions" in options:
            options["predictions"] = project.folder / f"{device}-{i}.{options['predictions']}"
        settings = Settings(
            spec=project.folder / "sublaplace.yaml", device=device, dtype="float64", allow_code=("nets",), **options
        )
        result = run_command(command, settings, report, json_text).result
        found.append(
            {key: value for key, value in result.items() if key not in ("seconds", "artifacts", "device", "provenance")}
        )
        found.append(sorted(result["artifacts"]))
        if "predictions" in options:
            found.append(options["predictions"].read_text())
    return [*found, report.said]


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
    projects = [with_oracle(Project(folder / "table"))]
    projects += [project_of(folder / name, name) for name in CALLS if name != "table"]
    on_cpu: set[str] = set()
    said, found = [], {}
    for project in projects:
        notes = Notes()
        expected = results(project, "cpu", Notes())
        with SecondDevice() as mode:
            found[project.folder.name] = differences(results(project, "cuda", notes), expected)
        on_cpu |= set(mode.on_cpu)
        said += notes.said
    print(json.dumps({"differences": found, "on_cpu": sorted(on_cpu), "notes": said}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
