"""Other products than float64 in whole commands: as accurate as promised, and part of what identifies a run."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
import torch
from cli.cli_tools import ROOT
from commands.in_process import Notes, result_of

from sublaplace_cli.cli.settings import Settings

NEAR = 1e-6  # of a variance


def variances(folder: Path, **options: str) -> torch.Tensor:
    """Of the full posterior at the quickstart's test rows."""
    file = folder / f"{'-'.join(options.values())}.csv"
    settings = Settings(spec=folder / "sublaplace.yaml", method="full", predictions=file, **options)
    result_of("evaluate", settings, Notes())
    with file.open() as lines:
        rows = [float(row["std"]) ** 2 for row in csv.DictReader(lines) if row["method"] == "full"]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_variances_of_the_quickstart(tmp_path: Path, dtype: str) -> None:
    folder = tmp_path / "quickstart"
    shutil.copytree(ROOT / "examples" / "quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"))
    exact, split, single = (variances(folder, dtype=dtype, gram_dtype=by) for by in ("float64", "split", "float32"))
    assert len(exact) > 50
    errors = [float(((found - exact) / exact).abs().max()) for found in (split, single)]
    assert 0 < errors[0] <= NEAR
    assert errors[0] < errors[1] / 100


def test_kernels_without_a_gpu_are_a_note_and_change_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "quickstart"
    shutil.copytree(ROOT / "examples" / "quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"))
    found = {}
    for kernels in ("auto", "triton"):
        notes = Notes()
        settings = Settings(spec=folder / "sublaplace.yaml", k="10", device="cpu", kernels=kernels, dry_run=True)
        found[kernels] = result_of("evaluate", settings, notes)["run_dir"]
        said = [note for note in notes.said if "Triton" in note]
        assert said == (["the Triton kernels are for CUDA devices: cpu does without"] if kernels == "triton" else [])
    assert found["auto"] == found["triton"]
