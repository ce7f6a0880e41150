"""Our engine beside laplace-torch and beside plain passes, each case in a fresh process: a table, and JSON with -o.

bash tests/benchmarks/run                     all cases, about ten minutes on two cores
bash tests/benchmarks/run --only mlp-k1000    one of them
bash tests/benchmarks/run -o result.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BATCHES = (8, 32, 128)
GIGA = 2**30


@dataclass(frozen=True)
class Bar:
    """What a case must reach: a least speed-up over the peer, or a largest ratio to a plain pass."""

    case: str
    speedup: float | None = None
    backends: tuple[str, ...] = ("curvlinops", "backpack", "asdl")
    ratio_at_most: float | None = None
    ratio_at_least: float | None = None
    peak_at_most: float | None = None


BARS = (
    Bar("mlp-k1000", speedup=20, peak_at_most=0.6 * GIGA),
    Bar("mlp-k10000", speedup=80),
    Bar("mlp-full", speedup=60),
    Bar("resnet20-k5000", speedup=5, peak_at_most=1.5 * GIGA),
    Bar("pass-mlp", ratio_at_most=1.5),
    Bar("pass-resnet20", ratio_at_most=2.0),
    Bar("scores-463715-rows", ratio_at_most=3.0),
    Bar("gram-2000", ratio_at_least=0.7),
)


def run(python: str, script: str, *arguments: object) -> dict:
    """One case in a process of its own; its failure is part of the result."""
    words = [python, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=HERE)
    if done.returncode != 0:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def best_peer(python: str, bar: Bar) -> dict:
    """The fastest of its backends and batch sizes, once each, then the least of three for the winner."""
    tried = {(b, n): run(python, "peer.py", bar.case, b, n, 1) for b in bar.backends for n in BATCHES}
    worked = {key: result for key, result in tried.items() if "seconds" in result}
    if not worked:
        return next(iter(tried.values()))
    winner = min(worked, key=lambda key: worked[key]["seconds"])
    again = run(python, "peer.py", bar.case, *winner, 3 if worked[winner]["seconds"] < 30 else 1)
    grid = {f"{backend}-{batch}": result.get("seconds") for (backend, batch), result in tried.items()}
    return {**again, "backend": winner[0], "batch": winner[1], "grid": grid}


def judge(bar: Bar, ours: dict, peer: dict | None) -> dict:
    row = {"case": bar.case, "ours": ours, "peer": peer}
    if peer is not None and "seconds" in ours and "seconds" in peer:
        row |= {"speedup": peer["seconds"] / ours["seconds"], "bar": f"≥ {bar.speedup:g}×"}
        row["reached"] = row["speedup"] >= bar.speedup
    if "ratio" in ours:
        limit = bar.ratio_at_most if bar.ratio_at_most is not None else bar.ratio_at_least
        row |= {"ratio": ours["ratio"], "bar": f"{'≤' if bar.ratio_at_most is not None else '≥'} {limit:g}"}
        row["reached"] = ours["ratio"] <= limit if bar.ratio_at_most is not None else ours["ratio"] >= limit
    if bar.peak_at_most is not None and "peak" in ours:
        row["peak_reached"] = ours["peak"] <= bar.peak_at_most
    return row


def show(row: dict) -> str:
    ours, peer = row["ours"], row["peer"] or {}
    if "failed" in ours:
        return f"| {row['case']} | failed: {ours['failed']} | | | |"
    beside = peer.get("seconds", ours.get("plain"))
    how = f" ({peer['backend']}, batch {peer['batch']})" if "backend" in peer else ""
    measured = f"{row['speedup']:.1f}×" if "speedup" in row else f"{row['ratio']:.2f}" if "ratio" in row else "–"
    verdict = "reached" if row.get("reached") and row.get("peak_reached", True) else "missed"
    seconds = f"{ours['seconds']:.3f} s, {ours['peak'] / GIGA:.2f} GiB"
    return f"| {row['case']} | {seconds} | {beside:.4g}{how} | {measured} ({row.get('bar', '')}) | {verdict} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[bar.case for bar in BARS])
    parser.add_argument("--peer", help="python of an environment with laplace-torch in it")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = []
    sys.stdout.write("| case | ours | beside it | measured (bar) | |\n|---|---|---|---|---|\n")
    for bar in BARS:
        if options.only and bar.case not in options.only:
            continue
        ours = run(sys.executable, "ours.py", bar.case)
        peer = best_peer(options.peer, bar) if bar.speedup is not None and options.peer else None
        rows.append(judge(bar, ours, peer))
        sys.stdout.write(show(rows[-1]) + "\n")
        sys.stdout.flush()
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
