"""The valid project that inputs are made from: every kind of file that the tool reads, all of them small."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import torch
import yaml
from cli.cli_tools import Project, Tool
from pyarrow import parquet
from safetensors.torch import save_file
from torch import nn
from torch.export import Dim, export

MEMORY = 64 * 2**20
RUN, POSTERIOR, BASELINE = "run", "posterior.safetensors", "baseline.json"
FORMATS = ("csv", "npz", "npy", "parquet", "arrow", "safetensors")
CANARY = "executed"  # appears in the folder of a case if any of its code is run
CHOICE = ("--method", "gradient", "--k", "5", "--json", "--memory", f"{MEMORY}")


class ManyOperators(nn.Module):
    """Layers whose operators differ in what their kernels trust."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(16, 1)
        self.convolution, self.norm = nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4)
        self.table = nn.Embedding(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = torch.tanh(self.first(x)).view(-1, 2, 2, 2)
        image = torch.relu(self.norm(self.convolution(image)))
        words = torch.softmax(image.flatten(2), -1) @ image.flatten(2).transpose(1, 2)
        larger = nn.functional.interpolate(words.unsqueeze(1), scale_factor=2.0)
        pooled = nn.functional.max_pool2d(larger, 2).flatten(1)
        shift = self.table(torch.arange(2)).sum()
        return self.last(torch.cat(torch.split(pooled, 8, dim=1), dim=1)) + shift


def build(folder: Path, tool: Tool) -> Path:
    """Write the project, run it once, and keep what the runs wrote."""
    project = Project(folder)
    torch.save(project.model.state_dict(), folder / "model.pt")
    (folder / "canary.py").write_text(f"open({str(CANARY)!r}, 'w').close()\n")
    _write_data(project)
    _export(folder / "model.pt2")
    spec = project.changed(model={"build": {"exported": "model.pt2"}})
    project.save(spec, "exported.yaml")
    _run(folder, tool)
    return folder


def _write_data(project: Project) -> None:
    folder, x, y = project.folder, project.x, project.y
    np.savez(folder / "data.npz", x=x, y=y)
    np.save(folder / "data.npy", np.hstack([x, y]))
    save_file({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, folder / "data.safetensors")
    columns = dict(zip(["a", "b", "c", "y0"], np.hstack([x, y]).T, strict=True))
    parquet.write_table(pyarrow.table(columns), folder / "data.parquet", row_group_size=16)
    _write_arrow(folder / "data.arrow", pyarrow.table(columns))
    choice: dict[str, Any] = {
        "csv": {"columns": project.spec["data"]["columns"]},
        "npz": {"arrays": {"input": "x", "target": "y"}},
        "npy": {"columns": {"target": 3, "input": [0, 1, 2]}},
        "parquet": {"columns": project.spec["data"]["columns"]},
        "arrow": {"columns": project.spec["data"]["columns"]},
        "safetensors": {"arrays": {"input": "x", "target": "y"}},
    }
    splits = project.spec["data"]["splits"]
    for form in FORMATS:
        data = {"format": form, "path": f"data.{form}", "splits": splits, **choice[form]}
        data["standardise"] = {"input": "from-train", "target": "from-train"}
        project.save(project.changed(data=data), f"{form}.yaml")


def _write_arrow(path: Path, table: pyarrow.Table) -> None:
    """A stream of two parts with compressed buffers: more can be wrong than in a plain file."""
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_stream(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=16)


def _export(path: Path) -> None:
    torch.manual_seed(0)
    program = export(ManyOperators().eval(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
    torch.export.save(program.run_decompositions(), path)


def _run(folder: Path, tool: Tool) -> None:
    evaluated = tool("evaluate", *CHOICE, "--run-dir", RUN, "-o", BASELINE, cwd=folder)
    assert evaluated.code == 0, evaluated.err
    (source,) = (folder / RUN).glob("posterior-gradient-*.safetensors")
    shutil.copyfile(source, folder / POSTERIOR)
    (folder / "indices.txt").write_text("0\n3\n7\n12\n40\n")
    np.save(folder / "indices.npy", np.array([0, 3, 7, 12, 40]))


def read_tree(content: bytes, form: str) -> Any:
    return json.loads(content) if form == "json" else yaml.safe_load(content)
