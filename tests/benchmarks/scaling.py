"""Strong scaling: the Jacobian pass and the Gram matrix by one rank and by two, one thread each.

`python scaling.py CASE` prints {seconds, ratio, …} as JSON: `ratio` is the time of one rank over that of two. Both are
whole commands under torchrun, in turns; what counts is the least of their own `seconds` for the step. That of the full
posterior includes its factorisation (2000³/3 operations, about 1 % of the Gram matrix of 270,000 parameters).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import problems
from large import HERE, images, prepare, resnet

ROUNDS = problems.REPEATS
HELD = ("--max-artifact", "1kB", "--memory", "8GiB")  # rows stay in memory: no disk in between


@dataclass(frozen=True)
class Case:
    rows: int  # of the training split
    command: tuple[str, ...]
    step: str  # of its `seconds`


CASES = {
    "pass-2-ranks": Case(1024, ("jacobians", "--split", "train"), "jacobians"),
    "gram-2-ranks": Case(2000, ("fit", "--method", "full"), "full"),
}


def by_ranks(case: Case, size: int, folder: Path) -> float:
    """Seconds of the step with this many ranks."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), "-m", "sublaplace_cli"]
    device = os.environ.get("BENCHMARK_DEVICE", "cpu")
    with tempfile.TemporaryDirectory() as run_dir:
        options = [*HELD, "--device", device, "--run-dir", run_dir, "--quiet", "--json"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": package_path()}
        words = [sys.executable, *launch, *case.command, *options]
        done = subprocess.run(words, cwd=folder, env=env, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)["seconds"][case.step]


def package_path() -> str:
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(HERE.parents[1])]))


def main() -> None:
    case = CASES[sys.argv[1]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images(folder, case.rows + 8, 2)
        prepare(folder, resnet(20, 1), "{arch: cifar_resnet, args: {depth: 20, out: 1}}", "binary", case.rows, 8)
        rounds = [{size: by_ranks(case, size, folder) for size in (1, 2)} for _ in range(ROUNDS)]
    times = {size: [each[size] for each in rounds] for size in (1, 2)}
    one, two = (min(times[size]) for size in (1, 2))
    json.dump({"seconds": two, "plain": one, "ratio": one / two, "all": times, "peak": 0}, sys.stdout)


if __name__ == "__main__":
    main()
