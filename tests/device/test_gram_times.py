"""The table for GPU owners, on the CPU; the roofline in the guide is the one that its script computes."""

from __future__ import annotations

import torch
from device import gram_times, roofline

from sublaplace_cli import guide
from sublaplace_cli.core.kernels import choice

# Of the largest entry, for rows of sizes that vary.
MOST = {"float64": 0.0, "float32": 1e-5, "split_4": 1e-7, "split_5": 1e-9}


def test_the_table_has_times_and_errors_of_every_kind_of_product() -> None:
    found = gram_times.lines(60, torch.device("cpu"))
    choice.choose("auto")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[2:] if line.startswith("|")]
    assert len(cells) == 3 * len(gram_times.WAYS)
    for _, products, _, seconds, error in cells:
        assert float(seconds) >= 0
        assert float(error) <= MOST[products]
        assert products == "float64" or float(error) > 0


def test_the_roofline_of_the_guide_is_computed() -> None:
    assert roofline.table() in (guide.FOLDER / "devices.md").read_text()


def test_the_roofline_follows_its_model() -> None:
    """One GPU by hand: where arithmetic is the limit, and where traffic is."""
    gpu = roofline.Gpu("", float64=1e12, float32=1e15, int8=1e13, bandwidth=1e12)
    products, entries = 20_000**2 * 1e6, 20_000**2 / 2 * 1e6 / 2048
    assert roofline.plain(gpu, gpu.float64, 8) == products / 1e12
    assert abs(roofline.plain(gpu, gpu.float32, 4) / (entries * 24 / 1e12) - 1) < 1e-12
    assert roofline.split(gpu, 4, fused=True) == 10 * products / 1e13
