"""Passes through a few combinations Uₙᵀf of each row's outputs instead of all outputs: one backward pass each."""

from dataclasses import replace

import torch

from .jacobian.autograd import combined_gradients
from .jacobian.capture import CHECKED_ROWS, Capture, pulled_by_name, require_agreement, rows_within
from .network.footprint import PeakMemory
from .network.forward import Inputs, evenly_spaced, row_count


def prepare_combined(capture: Capture, count: int, sample: Inputs, memory: int) -> Capture:
    """The same capture for `count` combinations: its blocks, memory and rows per pass, compared with plain autograd."""
    few, generator = evenly_spaced(sample, CHECKED_ROWS), torch.Generator().manual_seed(1)
    m, C = row_count(few), capture.n_outputs
    U = torch.randn(m, C, count, dtype=torch.float64, generator=generator)
    with PeakMemory() as memory_used:
        captured = capture(few, U=U)
    z = torch.randn(m, count, dtype=torch.float64, generator=generator)
    names = [part.name for part in capture.layout.parameters]
    truth = combined_gradients(capture.model, names, torch.einsum("ncs,ns->nc", U, z), few)
    require_agreement(names, pulled_by_name(captured.blocks, z, capture.layout), truth)
    row_bytes = memory_used.peak // m + 3 * U[0].numel() * U.element_size()  # U, and while it is computed
    templates = tuple(block.rows(0, 1) for block in captured.blocks)
    return replace(capture, templates=templates, row_bytes=row_bytes, rows_per_pass=rows_within(row_bytes, memory))
