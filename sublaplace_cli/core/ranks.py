"""The order of the rows: ranks, their correlation, the risk of the most certain rows, and two sets of rows told apart.

Values that agree to 12 digits tie; nothing here depends on the order in which rows that tie are stored.
"""

import math

import torch
from torch import Tensor

from .selectors import rounded

ROUNDING_OF_A_COUNT = 1e-6  # 0.95 · 20 must be 19, not a little more


def mean_ranks(values: Tensor) -> Tensor:
    """Ranks 1 to M of the values (M,); those that tie have the mean of their ranks."""
    place, count = _tied(values)
    return (count.cumsum(0) - 0.5 * (count - 1).double())[place]


def rank_correlation(a: Tensor, b: Tensor) -> float | None:
    """Spearman's correlation of two vectors; None if one of them has the same value everywhere."""
    x, y = (mean_ranks(values) - 0.5 * (len(values) + 1) for values in (a, b))
    scale = float(x.norm() * y.norm())
    return float(x @ y) / scale if scale > 0 else None


def risk_coverage(uncertainty: Tensor, risk: Tensor) -> Tensor:
    """Mean risk of the i most certain rows for i = 1 to M (M,): the expected one, if rows that tie come at random."""
    place, count = _tied(uncertainty)
    mean = torch.zeros(len(count), dtype=risk.dtype, device=risk.device).index_add_(0, place, risk) / count
    kept = torch.arange(1, len(risk) + 1, device=risk.device)
    return mean.repeat_interleave(count).cumsum(0) / kept


def auroc(negatives: Tensor, positives: Tensor) -> float:
    """Area under the ROC curve: the share of pairs whose positive has the larger value; a tie is half a pair."""
    n = len(positives)
    ranks = mean_ranks(torch.cat([positives, negatives]))[:n]
    return (float(ranks.sum()) - 0.5 * n * (n + 1)) / (n * len(negatives))


def share_not_above(share: float, of: Tensor, values: Tensor) -> float:
    """Share of the values that are not above the least threshold that this share of the others are not above."""
    threshold = rounded(of).sort().values[math.ceil(share * len(of) - ROUNDING_OF_A_COUNT) - 1]
    return float((rounded(values) <= threshold).double().mean())


def _tied(values: Tensor) -> tuple[Tensor, Tensor]:
    """(group of each value, values in each group); groups are in rising order."""
    _, place, count = torch.unique(rounded(values), return_inverse=True, return_counts=True)
    return place, count
