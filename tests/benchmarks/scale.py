"""Time and memory of whole commands for various N, p, C and k: `python scale.py` prints a Markdown table.

Random weights and synthetic data, one command in a fresh process per line, on all cores.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import problems
import torch
from large import images, prepare, resnet, sublaplace

TEST_ROWS = 200


@dataclass(frozen=True)
class Point:
    """One line of the table."""

    network: str
    rows: int
    k: int
    arguments: tuple[str, ...] = ()
    outputs: int = 1


MLP, NARROW, R20, R56 = "MLP 3×200", "MLP 3×1000", "ResNet-20", "ResNet-56"
NONE, CERTIFIED = ("--full", "none"), ("--full", "certified", "--tolerance", "0.05")
POINTS = (
    Point(MLP, 1000, 1000),
    Point(MLP, 4000, 1000),
    Point(MLP, 16_000, 1000),
    Point(MLP, 100_000, 1000, NONE),
    Point(MLP, 463_715, 1000, NONE),
    Point(MLP, 50_000, 1000, CERTIFIED),
    Point(MLP, 4000, 10_000, NONE),
    Point(NARROW, 4000, 1000),
    Point(R20, 500, 1000),
    Point(R20, 2000, 1000),
    Point(R56, 2000, 1000),
    Point(R20, 2000, 1000, NONE),
    Point(R20, 500, 1000, (), 10),
)


def prepared(folder: Path, point: Point) -> int:
    """Write the files of a point; returns its number of parameters."""
    if point.network.startswith("MLP"):
        width = int(point.network.rpartition("×")[2])
        torch.manual_seed(0)
        build = f"{{arch: mlp, args: {{in: 90, hidden: [{width}, {width}, {width}], out: 1, act: relu}}}}"
        model = problems.plain_mlp([90, width, width, width, 1])
        made = np.random.default_rng(0)
        n = point.rows + TEST_ROWS
        np.savez(folder / "rows.npz", x=made.standard_normal((n, 90), dtype=np.float32), y=made.standard_normal(n))
        prepare(folder, model, build, "regression", point.rows, TEST_ROWS)
    else:
        depth = int(point.network.rpartition("-")[2])
        model = resnet(depth, point.outputs)
        images(folder, point.rows + TEST_ROWS, max(2, point.outputs))
        build = f"{{arch: cifar_resnet, args: {{depth: {depth}, out: {point.outputs}, shortcut: B}}}}"
        prepare(folder, model, build, "binary" if point.outputs == 1 else "multiclass", point.rows, TEST_ROWS)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    sys.stdout.write("| network | p | N | C | k | full posterior | seconds | of these | peak memory |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|---|---|\n")
    for point in POINTS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            p = prepared(folder, point)
            done = sublaplace(folder, "evaluate", "--method", "gradient", "--k", str(point.k), *point.arguments)
        steps = sorted((done["steps"] or {}).items(), key=lambda step: -step[1])[:3]
        parts = ", ".join(f"{step} {seconds:.3g}" for step, seconds in steps)
        full = "no" if point.arguments == NONE else "yes"
        sys.stdout.write(
            f"| {point.network} | {p:,} | {point.rows:,} | {point.outputs} | {point.k:,} | {full} "
            f"| {done['seconds']:.3g} | {parts} | {done['peak'] / 1e9:.2f} GB |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
