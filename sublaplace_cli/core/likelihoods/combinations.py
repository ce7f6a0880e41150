"""A few random combinations of many outputs that have the output Hessian on average.

With a root H = W Wᵀ, put each column of W, with a random sign, into one of s groups and add up each group: the s sums
U = W Z have E[U Uᵀ] = H, because the signs of different columns are independent. Only products of columns in the same
group are random: the groups have about equal weight, so that the few heavy columns are mostly on their own.
"""

import torch
from torch import Tensor


def grouped_signs(weights: Tensor, signs: Tensor, count: int) -> Tensor:
    """Z (m, C, count): the sign of each column (m, C) in its group, by the columns' squared norms (m, C)."""
    groups = balanced_groups(weights, count)
    return signs.new_zeros(*signs.shape, count).scatter_(2, groups.unsqueeze(2), signs.unsqueeze(2))


def balanced_groups(weights: Tensor, count: int) -> Tensor:
    """A group for each column (m, C): from the heaviest on, each goes to the group that is lightest so far."""
    order = weights.argsort(dim=1, descending=True, stable=True)
    filled = weights.new_zeros(len(weights), count)
    groups = torch.zeros_like(order)
    for column in order.split(1, dim=1):  # (m, 1)
        lightest = filled.argmin(dim=1, keepdim=True)
        filled.scatter_add_(1, lightest, weights.gather(1, column))
        groups.scatter_(1, column, lightest)
    return groups
