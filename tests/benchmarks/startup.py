"""What a command costs beyond `import torch`: `python startup.py CASE` prints {seconds, plain, ratio} as JSON.

CPU time (user and system) of whole processes, the least of several of each kind, which run in turns: other work on the
machine only adds to it. The quickstart in a fresh folder, once with nothing stored and once with everything stored.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["-m", "sublaplace_cli", "evaluate", "--method", "gradient", "--k", "1000"]
# Each runs right after `import torch` alone; the first one leaves everything stored for the second.
CASES = {"first-run": [*COMMAND, "--recompute"], "start-up": COMMAND}


def cpu_seconds(arguments: list[str], folder: Path, threads: int | None) -> float:
    """User and system time of one Python process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
    environment.pop("OMP_NUM_THREADS", None)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=True, **quiet)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(repeats: int, threads: int | None = None) -> dict[str, dict[str, float]]:
    """Seconds of each case beyond `import torch` alone, and its ratio to it."""
    kinds = {"torch": ["-c", "import torch"], **CASES}
    least = dict.fromkeys(kinds, float("inf"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "quickstart"
        shutil.copytree(ROOT / "examples/quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"))
        cpu_seconds(COMMAND, folder, threads)  # writes the bytecode
        for _ in range(repeats):
            for kind, arguments in kinds.items():
                least[kind] = min(least[kind], cpu_seconds(arguments, folder, threads))
    plain = least["torch"]
    return {case: {"seconds": least[case] - plain, "plain": plain, "ratio": least[case] / plain} for case in CASES}


def main() -> None:
    case, repeats = sys.argv[1], max(5, int(os.environ.get("BENCHMARK_REPEATS", "3")))
    found = [measured(repeats, threads)[case] for threads in (1, None)]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    json.dump({"peak": peak, **max(found, key=lambda one: one["seconds"])}, sys.stdout)


if __name__ == "__main__":
    main()
