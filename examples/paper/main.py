"""The paper's experiments with the tool: `bash examples/paper/run --help`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path

import torch
from common import HERE, Place

from sublaplace_cli import SublaplaceError

STUDIES = ("theory", "uci", "year", "cifar", "wheel", "wheel-why")
FIGURES = "figures"  # pictures and RESULTS.md from the tables that are there


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bash examples/paper/run", description="The paper's experiments, driven by the tool; resumable."
    )
    parser.add_argument(
        "study", nargs="*", help=f"one or more of {', '.join([*STUDIES, FIGURES])}; default: all", default=[]
    )
    parser.add_argument("--quick", action="store_true", help="small settings, to check that everything works")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=os.environ.get("SUBLAPLACE_DATA"),
        help="the folder with the data sets (default: $SUBLAPLACE_DATA); without one, quick studies use synthetic data",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="folder for the tables (default: results/ next to this file, or with --quick a temporary folder)",
    )
    parser.add_argument("--work", type=Path, default=HERE / ".work", help="checkpoints and run folders, for resuming")
    options = parser.parse_args()
    wanted = options.study or [*STUDIES, FIGURES]
    if unknown := [name for name in wanted if name not in (*STUDIES, FIGURES)]:
        parser.error(f"unknown study {unknown[0]!r}: expected {', '.join([*STUDIES, FIGURES])}")
    data = None if options.data_dir is None else Path(options.data_dir).resolve()
    if data is not None and not data.is_dir():
        parser.error(f"--data-dir {data}: there is no such folder")
    if data is None and not options.quick and set(wanted) & {"uci", "cifar"}:
        parser.error("the full studies need the data sets: --data-dir FOLDER, or $SUBLAPLACE_DATA")
    if options.quick and options.results and options.results.resolve() == HERE / "results":
        parser.error("--quick with the results of the full studies: its runs have the same names")
    if options.quick:
        torch.set_num_threads(1)  # small problems are not faster with more
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        results = options.results or (Path(scratch) if options.quick else HERE / "results")
        work = Path(scratch) / "work" if options.quick else options.work
        results.mkdir(parents=True, exist_ok=True)
        place = Place(data, results.resolve(), work.resolve(), options.quick)
        for name in wanted:
            if name == FIGURES:
                import_module("report").run(place)
                continue
            try:
                import_module(name.replace("-", "_")).run(place)
            except SublaplaceError as error:
                raise SystemExit(f"error: {error}") from error
            table = results / f"{name}.csv"
            lines = (
                len(table.read_text().splitlines()) - 1 if table.exists() else 0
            )  # other processes may have all of its runs
            sys.stdout.write(f"{name}: {lines} lines in {table if results is options.results else table.name}\n")
        if options.quick and not options.results:
            sys.stdout.write("these were written to a temporary folder; --results FOLDER keeps tables and pictures\n")


if __name__ == "__main__":
    main()
