"""The examples besides the quickstart, in their quick form."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_rescaling_study_on_the_quickstart(tmp_path):
    words = [
        sys.executable,
        str(ROOT / "examples" / "rescale" / "study.py"),
        "--k",
        "100",
        "-o",
        str(tmp_path / "t.csv"),
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SUBLAPLACE")}
    done = subprocess.run(words, capture_output=True, text=True, env={**environment, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "t.csv", newline="") as file:
        lines = {line["method"]: line for line in csv.DictReader(file)}
    for method in ("gradient", "greedy", "random"):
        none, scale, hybrid = (float(lines[method][kind]) for kind in ("none", "scale", "hybrid"))
        assert scale < none / 2
        assert hybrid < 1.1 * min(scale, float(lines["norm"]["none"]))
