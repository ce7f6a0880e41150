"""Our engine compared with laplace-torch and with plain passes, each case in a fresh process: a table, JSON with -o.

bash tests/benchmarks/run                     all cases, about ten minutes on two cores
bash tests/benchmarks/run --only mlp-k1000    one of them
bash tests/benchmarks/run -o result.json
bash tests/benchmarks/run --peer-at backpack-128 --peer-at curvlinops-32    the peer's best and its default alone
bash tests/benchmarks/run --device cuda       on a GPU
bash tests/benchmarks/run --large             networks that others cannot fit into memory, almost an hour

BENCHMARK_REPEATS=1 measures once where otherwise the least of three times counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).parent
BATCHES = (128, 32, 8)
LIMIT = 240.0  # seconds for one run of the peer


@dataclass(frozen=True)
class Bar:
    """Limits of a case: ratio to the floor, least speed-up over the peer, ratio to a plain pass, largest memory, …"""

    case: str
    speedup: float | None = None
    compared: bool = False  # with the peer
    backends: tuple[str, ...] = ("curvlinops", "backpack", "asdl")
    floor_ratio_at_most: float | None = None  # to the bare float64 products and plain passes that none can do without
    ratio_at_most: float | None = None
    ratio_at_least: float | None = None
    seconds_at_most: float | None = None
    peak_at_most: float | None = None
    peak_above_peer: float | None = None
    script: str = "ours.py"


BARS = (
    Bar("mlp-k1000", floor_ratio_at_most=1.15, compared=True, peak_above_peer=0.1e9),
    Bar("mlp-k10000", floor_ratio_at_most=1.15, compared=True),
    Bar("mlp-full", floor_ratio_at_most=1.15, compared=True),
    Bar("resnet20-k5000", speedup=7, floor_ratio_at_most=1.25, compared=True, peak_at_most=1.5e9),
    Bar("pass-mlp", ratio_at_most=1.5),
    Bar("pass-resnet20", ratio_at_most=2.0),
    Bar("scores-463715-rows", ratio_at_most=3.0),
    Bar("gram-2000", ratio_at_least=0.7),
    Bar("greedy-mlp-k3000", ratio_at_least=20, script="selection.py"),
    Bar("greedy-resnet20-k10000", seconds_at_most=60, script="selection.py"),
    Bar("many-k", ratio_at_most=1.5, script="selection.py"),
    Bar("serve-mlp-1", ratio_at_most=1.5, script="serving.py"),
    Bar("serve-mlp-64", ratio_at_most=1.5, script="serving.py"),
    Bar("serve-resnet20-1", ratio_at_most=1.5, script="serving.py"),
    Bar("serve-resnet20-64", ratio_at_most=1.5, script="serving.py"),
    Bar("pass-2-ranks", ratio_at_least=1.7, script="scaling.py"),
    Bar("gram-2-ranks", ratio_at_least=1.7, script="scaling.py"),
    Bar("start-up", seconds_at_most=0.3, ratio_at_most=1.1, script="startup.py"),
    Bar("first-run", seconds_at_most=1.0, script="startup.py"),
)
LARGE = (
    Bar("transformer", peak_at_most=4e9, script="large.py"),
    Bar("resnet110", peak_at_most=8e9, script="large.py"),
    Bar("resnet32", peak_at_most=14e9, script="large.py"),
)


def run(python: str, script: str, *arguments: object, limit: float | None = None) -> dict:
    """One case in a separate process; its failure is part of the result."""
    words = [python, str(HERE / script), *map(str, arguments)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, cwd=HERE, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {limit:g} s"}
    if done.returncode != 0:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def best_peer(python: str, bar: Bar, only: list[tuple[str, int]]) -> dict:
    """The fastest of its backends and batch sizes (or of `only` these), once each, then the least of three for it.

    From large batches to small ones, until one takes 1.5 times as long as the one before: smaller ones are slower.
    """
    tried: dict[tuple[str, int], dict] = {}
    for backend in bar.backends:
        before = float("inf")
        for batch in BATCHES:
            if only and (backend, batch) not in only:
                continue
            tried[backend, batch] = run(python, "peer.py", bar.case, backend, batch, 1, limit=LIMIT)
            seconds = tried[backend, batch].get("seconds")
            if seconds is not None and seconds > 1.5 * before:
                break
            before = before if seconds is None else seconds
    worked = {key: result for key, result in tried.items() if "seconds" in result}
    if not worked:
        return next(iter(tried.values()))
    winner = min(worked, key=lambda key: worked[key]["seconds"])
    again = run(python, "peer.py", bar.case, *winner, 3 if worked[winner]["seconds"] < 30 else 1)
    grid = {f"{backend}-{batch}": result.get("seconds") for (backend, batch), result in tried.items()}
    return {**again, "backend": winner[0], "batch": winner[1], "grid": grid}


def judge(bar: Bar, ours: dict, peer: dict | None) -> dict:
    """Every bar of the case as {what, measured, limit, reached}; one that could not be measured is not reached."""
    peer = peer or {}
    speed = peer["seconds"] / ours["seconds"] if "seconds" in peer and "seconds" in ours else None
    over_floor = ours["seconds"] / ours["floor"] if "floor" in ours else None
    peak_limit = peer["peak"] + bar.peak_above_peer if bar.peak_above_peer is not None and "peak" in peer else None
    found = [
        ("speed-up", speed, bar.speedup, ">="),
        ("ratio to the floor", over_floor, bar.floor_ratio_at_most, "<="),
        ("ratio", ours.get("ratio"), bar.ratio_at_most, "<="),
        ("ratio", ours.get("ratio"), bar.ratio_at_least, ">="),
        ("seconds", ours.get("seconds"), bar.seconds_at_most, "<="),
        ("peak", ours.get("peak"), bar.peak_at_most or peak_limit, "<="),
    ]
    bars = [
        {
            "what": what,
            "measured": value,
            "limit": limit,
            "sign": sign,
            "reached": value is not None and (value >= limit if sign == ">=" else value <= limit),
        }
        for what, value, limit, sign in found
        if limit is not None
    ]
    most = peer["seconds"] / ours["floor"] if "seconds" in peer and "floor" in ours else None
    return {"case": bar.case, "ours": ours, "peer": peer, "bars": bars, "speed-up of bare products and passes": most}


def show(row: dict) -> str:
    ours, peer = row["ours"], row["peer"]
    if "failed" in ours:
        return f"| {row['case']} | failed: {ours['failed']} | | |"
    reference = "–"
    if "seconds" in peer:
        reference = f"{peer['seconds']:.3g} s, {peer['peak'] / 1e9:.2f} GB ({peer['backend']}, batch {peer['batch']})"
    elif "plain" in ours:
        reference = f"{ours['plain']:.4g}"
    verdicts = "; ".join(map(verdict, row["bars"]))
    if (most := row["speed-up of bare products and passes"]) is not None:
        verdicts += f"; bare float64 products and plain passes alone take {ours['floor']:.3f} s, {most:.1f}×"
    return f"| {row['case']} | {ours['seconds']:.3f} s, {ours['peak'] / 1e9:.2f} GB | {reference} | {verdicts} |"


def verdict(bar: dict) -> str:
    unit, scale = ("GB", 1e9) if bar["what"] == "peak" else ("×" if "speed" in bar["what"] else "", 1)
    value = "not measured" if bar["measured"] is None else f"{bar['measured'] / scale:.2f}{unit}"
    word = "reached" if bar["reached"] else "MISSED"
    return f"{bar['what']} {value} ({bar['sign']} {bar['limit'] / scale:.3g}{unit}): {word}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[bar.case for bar in (*BARS, *LARGE)])
    parser.add_argument("--large", action="store_true", help="the large cases instead")
    parser.add_argument("--device", default="cpu", help="of both sides: cpu (the default), cuda or cuda:N")
    parser.add_argument("--peer", help="python of an environment with laplace-torch in it")
    parser.add_argument(
        "--peer-at",
        action="append",
        default=[],
        metavar="BACKEND-BATCH",
        help="only these of the peer's combinations, e.g. backpack-128; may be repeated",
    )
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        parser.error(f"--device {options.device}: {str(error).splitlines()[0]}")
    os.environ["BENCHMARK_DEVICE"] = options.device
    only = [(name, int(batch)) for name, _, batch in (word.rpartition("-") for word in options.peer_at)]
    rows = []
    sys.stdout.write("| case | ours | compared with | bars |\n|---|---|---|---|\n")
    named = options.only or [bar.case for bar in (LARGE if options.large else BARS)]
    for bar in (*BARS, *LARGE):
        if bar.case not in named:
            continue
        ours = run(sys.executable, bar.script, bar.case)
        peer = best_peer(options.peer, bar, only) if bar.compared and options.peer else None
        rows.append(judge(bar, ours, peer))
        sys.stdout.write(show(rows[-1]) + "\n")
        sys.stdout.flush()
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
