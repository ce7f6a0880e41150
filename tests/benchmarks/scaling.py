"""Strong scaling: the Jacobian pass and the Gram matrix by one rank and by two, one thread each.

`python scaling.py CASE` prints {seconds, ratio, …} as JSON: `ratio` is the time of one rank over that of two. Both go
the way of the commands (a session, its Jacobian, its Gram matrix), in turns, and the least time of each counts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from large import images, prepare, resnet

from sublaplace_cli.__main__ import prefer_large_pages
from sublaplace_cli.core.workers import WorkerGroup
from sublaplace_cli.distributed.process_group import worker_group
from sublaplace_cli.distributed.ranks import current_rank
from sublaplace_cli.steps.following import follow
from sublaplace_cli.steps.jacobians import precision_of
from sublaplace_cli.steps.opening import open_session
from sublaplace_cli.steps.passes import jacobian_of
from sublaplace_cli.steps.settings import Settings, Silent

HERE = Path(__file__).resolve()
ROUNDS = 3
SIZES = {"pass-2-ranks": (1024, 1), "gram-2-ranks": (2000, 1)}  # training rows, outputs


def measure(case: str) -> dict[str, float] | None:
    """On one rank: seconds of the pass and of the Gram matrix, the leader's."""
    prefer_large_pages()
    torch.set_num_threads(1)
    info = current_rank()
    with worker_group(info, os.environ.get("BENCHMARK_DEVICE", "cpu")) as workers:
        return _measured(case, workers, info.is_leader)


def _measured(case: str, workers: WorkerGroup, leads: bool) -> dict[str, float] | None:
    run_dir = Path(tempfile.mkdtemp())
    settings = Settings(max_artifact="1kB", memory="8GiB", run_dir=run_dir)  # held, not stored: no disk in between
    settings = replace(settings, device=str(getattr(workers, "device", "auto")))
    with open_session(settings, Silent(), ("train",), workers=workers) as session:
        if not leads:
            follow(session)
            return None
        start = time.perf_counter()
        jacobian_of(session, "train")
        passed = time.perf_counter()
        if case.startswith("pass"):
            return {"seconds": passed - start}
        precision = precision_of(session)
        start = time.perf_counter()
        precision.gram()
        return {"seconds": time.perf_counter() - start}


def by_ranks(case: str, size: int, folder: Path) -> float:
    """Seconds with so many ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = []
    for rank in range(size):
        own = {**common, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1}
        env = {**os.environ, **{key: str(value) for key, value in own.items()}}
        words = [sys.executable, str(HERE), case, "--rank"]
        running.append(subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, text=True))
    answers = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit(f"a rank failed: {[process.returncode for process in running]}")
    return json.loads(answers[0])["seconds"]


def main() -> None:
    case = sys.argv[1]
    if "--rank" in sys.argv:
        if (found := measure(case)) is not None:
            json.dump(found, sys.stdout)
        return
    n_rows, outputs = SIZES[case]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images(folder, n_rows + 8, 2)
        prepare(folder, resnet(20, outputs), "{arch: cifar_resnet, args: {depth: 20, out: 1}}", "binary", n_rows, 8)
        rounds = [{size: by_ranks(case, size, folder) for size in (1, 2)} for _ in range(ROUNDS)]
    times = {size: [each[size] for each in rounds] for size in (1, 2)}
    one, two = (min(times[size]) for size in (1, 2))
    json.dump({"seconds": two, "plain": one, "ratio": one / two, "all": times, "peak": 0}, sys.stdout)


if __name__ == "__main__":
    main()
