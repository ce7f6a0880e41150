"""On a real CUDA device: `pytest -m cuda`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, Case
from core.problems import block_gram, columns_of

from sublaplace_cli import device as devices
from sublaplace_cli.core.jacobian.capture import Captured, prepare_capture
from sublaplace_cli.core.network.forward import map_inputs
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.selectors.search.device_pivots import pivots_on_device

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
ROOT = Path(__file__).resolve().parents[2]
CLOSE = 1e-8


def quickstart(folder: Path, device: str, *more: str) -> dict[str, Any]:
    """The README's example through the command line, in float64."""
    shutil.copytree(ROOT / "examples" / "quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"))
    command = [sys.executable, "-m", "sublaplace_cli", "evaluate", "--device", device, "--dtype", "float64", "--json"]
    methods = "gradient,greedy,subnet-diagonal,last-k,random,magnitude,neural-linear,diagonal,map,norm,constant"
    done = subprocess.run(
        [*command, "--method", methods, "--k", "50,500", *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("more", [(), ("--memory", "3MB", "--full", "none"), ("--rescale", "hybrid")], ids=" ".join)
def test_the_quickstart_gives_the_numbers_of_the_cpu(tmp_path: Path, more: tuple[str, ...]) -> None:
    """With little memory, its rows stream from the disk."""
    cpu, cuda = (quickstart(tmp_path / device, device, *more) for device in ("cpu", "cuda"))
    assert cuda["device"].startswith("cuda")
    assert len(cuda["rows"]) == len(cpu["rows"]) > 10
    fulls = [[result["full"]] if result["full"] is not None else [] for result in (cuda, cpu)]
    for found, expected in zip([*fulls[0], *cuda["rows"]], [*fulls[1], *cpu["rows"]], strict=True):
        for key, value in expected.items():
            who = f"{expected['method']} {expected['k']}: {key}"
            if isinstance(value, float):
                assert found[key] == pytest.approx(value, rel=CLOSE, abs=CLOSE), who
            else:
                assert found[key] == value, who


def captured(case: Case, device: str) -> Captured:
    model, train, *_ = case.make()
    model, rows = model.to(device), map_inputs(lambda t: t.to(device), train)
    return prepare_capture(model, Layout.of(model), rows, 2**30)(rows)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_blocks_answer_as_on_the_cpu(case: Case) -> None:
    cpu, cuda = captured(case, "cpu"), captured(case, "cuda")
    torch.testing.assert_close(cuda.f.cpu(), cpu.f, rtol=CLOSE, atol=CLOSE)
    for found, expected in zip(cuda.blocks, cpu.blocks, strict=True):
        for prior in (torch.full((expected.width,), 0.7), torch.linspace(0.2, 3.0, expected.width)):
            v = prior.double()
            local, n = torch.arange(0, expected.width, 2), cpu.f.numel()
            u = torch.ones(cpu.f.numel(), 2, dtype=torch.float64)
            pairs = {
                "dense": (found.dense().values.double(), expected.dense().values.double()),
                "expanded": (found.expanded().dense().values.double(), expected.expanded().dense().values.double()),
                "squares": (found.squares(), expected.squares()),
                "columns": (columns_of(found, local.cuda(), n), columns_of(expected, local, n)),
                "gram": (block_gram(found, found, v.cuda()).triu(), block_gram(expected, expected, v).triu()),
                "products": (found.own_products(v.cuda()), expected.own_products(v)),
                "pull": (found.pull(u.cuda()), expected.pull(u)),
            }
            for question, (answer, truth) in pairs.items():
                assert answer.is_cuda, question
                torch.testing.assert_close(answer.cpu(), truth, rtol=CLOSE, atol=CLOSE, msg=f"{case.name}: {question}")


def test_repeated_passes_give_the_same_bits() -> None:
    """What is computed again must be what it was before."""
    case = next(case for case in CASES if case.name == "conv-multiclass")
    once, again = captured(case, "cuda"), captured(case, "cuda")
    assert torch.equal(once.f, again.f)
    for a, b in zip(once.blocks, again.blocks, strict=True):
        assert torch.equal(a.dense().values, b.dense().values)


def test_products_in_float32_are_close(tmp_path: Path) -> None:
    double, single = (quickstart(tmp_path / kind, "cuda", "--gram-dtype", kind) for kind in ("float64", "float32"))
    assert single["full"]["mean_std"] == pytest.approx(double["full"]["mean_std"], rel=1e-3)


def test_what_is_moved_beside_the_work_arrives_whole() -> None:
    device = torch.device("cuda", 0)
    for size in (10, 10**6):
        for _ in range(20):
            host = devices.room_for(device)(size, dtype=torch.float64)
            assert host.is_pinned()
            host.copy_(torch.randn(size, dtype=torch.float64))
            busy = torch.randn(2000, 2000, device=device) @ torch.randn(2000, 2000, device=device)
            assert torch.equal(devices.move(host, device).cpu(), host)
            assert bool(torch.isfinite(busy).all())


def test_pivots_are_those_of_the_cpu() -> None:
    A = torch.randn(300, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    T = A.T @ A / 10 + torch.eye(200, dtype=torch.float64)
    (taken, pivots, _), (there, values, _) = (
        pivots_on_device(T.to(device), 150, lambda *_: False) for device in ("cpu", "cuda")
    )
    assert there == taken
    assert values == pytest.approx(pivots, rel=1e-10)
