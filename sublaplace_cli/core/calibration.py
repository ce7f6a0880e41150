"""Calibration errors that need more than a sum over bins of equal width."""

import math

import numpy as np
import torch
from torch import Tensor

from .ranks import mean_ranks

STD_BINS = 10  # few: the error of a bin's own RMSE adds to the number
LEAST_BANDWIDTH = 1e-3
CELLS = 2**14  # cells of the probabilities, and steps of the integral over them
COSINES = 2740  # with a larger frequency, the least bandwidth leaves less than 1e-16
TAYLOR_TERMS = 6  # inside a cell: below 1e-11 of the sum
BISECTIONS = 30


def normalised_calibration_error(error: Tensor, std: Tensor) -> float:
    """Mean of |RMV − RMSE|/RMV over bins of equally many pairs (n,), by std; pairs whose std ties share a bin.

    ENCE of Levi et al. (2022). RMV is the root of a bin's mean variance. A bin counts by its pairs, because with ties
    the bins are not of equal size.
    """
    bins = ((mean_ranks(std) - 0.5) * STD_BINS / len(std)).long()
    count, square, variance = (
        torch.zeros(STD_BINS, dtype=torch.float64, device=std.device).index_add_(0, bins, values)
        for values in (torch.ones_like(std), error.square(), std.square())
    )
    filled = count > 0
    ratio = (square[filled] / variance[filled]).sqrt()  # RMSE / RMV
    return float((count[filled] * (1 - ratio).abs()).sum()) / len(std)


def smooth_calibration_error(confidence: Tensor, correct: Tensor) -> float:
    """smECE of Błasiok and Nakkiran (2023): the bandwidth s with ∫ |mean of (y − p) K_s(t, p)| dt = s.

    K_s is the Gaussian kernel on 0 to 1, reflected at both ends. The integral falls as s grows, so there is one such
    s. It is searched from 0.001 on; if it is smaller, the integral at 0.001 is returned, which is smaller still.
    """
    # On the host: two vectors go there, and thirty small transforms, one after the other, gain nothing from a device.
    p, y = confidence.cpu().numpy(), correct.cpu().numpy()
    cosines = _cosine_means(p, y - p)
    low, high = LEAST_BANDWIDTH, 1.0
    least = _smoothed_error(cosines, low)
    if not least > low:  # also if it is not a number
        return least
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _smoothed_error(cosines, middle) > middle else (low, middle)
    return (low + high) / 2


def _cosine_means(p: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Means of residual·cos(πkp) for k = 0, 1, … (COSINES,), by Taylor expansion around the centres of cells."""
    cell = np.clip((p * CELLS).astype(np.int64), 0, CELLS - 1)
    offset = p - (cell + 0.5) / CELLS
    frequency = -1j * math.pi * np.arange(COSINES)
    total = np.zeros(COSINES, dtype=np.complex128)
    for j in range(TAYLOR_TERMS):
        moment = np.bincount(cell, residual * offset**j / math.factorial(j), minlength=CELLS)
        total += frequency**j * np.fft.rfft(moment, 2 * CELLS)[:COSINES]
    return (np.exp(frequency * 0.5 / CELLS) * total).real / len(p)


def _smoothed_error(cosines: np.ndarray, bandwidth: float) -> float:
    """The integral at one bandwidth: a reflected Gaussian is 1 + 2 Σ exp(−(πks)²/2) cos(πkt) cos(πkp)."""
    damped = cosines * np.exp(-0.5 * (math.pi * bandwidth * np.arange(COSINES)) ** 2)
    residual = np.abs(np.fft.irfft(damped, 2 * CELLS, norm="forward")[: CELLS + 1])
    return float(residual.sum() - 0.5 * (residual[0] + residual[-1])) / CELLS  # by trapezoids
