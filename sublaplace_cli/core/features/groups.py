"""Random signs and sums over groups: n numbers become k, each with a random sign in one of k sums.

The random numbers are raw bits of PCG64, drawn on the CPU, so they are the same on every device and in every version.
The sums are gathered, never scattered into one place from several threads: the order of their terms is fixed. Each
operation is one multiplication or addition per number, which IEEE arithmetic rounds in one way only; so a row has the
same bits wherever it stands.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor


def random_bins(n: int, k: int, *seed: int) -> tuple[Tensor, Tensor]:
    """(the sum, the sign) of each of n numbers: groups of equal size, by a random permutation; n ≤ k: one each."""
    padded = -(-n // k) * k
    raw = np.random.PCG64(seed).random_raw(padded)
    bins = np.empty(padded, dtype=np.int64)
    bins[np.argsort(raw >> np.uint64(1), kind="stable")] = np.arange(padded) % k
    signs = (raw[:n] & np.uint64(1)).astype(np.float64) * 2 - 1
    return torch.from_numpy(bins[:n].copy()), torch.from_numpy(signs)


@dataclass(frozen=True)
class Groups:
    """Σ of `factor` · x over the members of each of k groups."""

    members: Tensor | None  # (longest group, k), padded; None: no group has more than one member
    factor: Tensor  # of the members, 0 for padding; or (n,)
    bins: Tensor  # (n,)
    k: int

    @property
    def n(self) -> int:
        return len(self.bins)

    @classmethod
    def of(cls, bins: Tensor, factor: Tensor, k: int) -> Self:
        """The groups of these n numbers (on any device), made on the device of `factor`."""
        bins = bins.to(factor.device)
        sizes = torch.zeros(k, dtype=torch.int64, device=bins.device)
        order = bins.argsort(stable=True)
        found, counts = bins[order].unique_consecutive(return_counts=True)
        sizes[found] = counts
        longest = int(counts.max()) if len(counts) else 1
        if longest == 1:
            return cls(None, factor, bins, k)
        place = torch.arange(len(bins), device=bins.device) - (sizes.cumsum(0) - sizes)[bins[order]]
        members = torch.zeros(longest, k, dtype=torch.int64, device=bins.device)
        members[place, bins[order]] = order
        own = factor.new_zeros(longest, k)
        own[place, bins[order]] = factor[order]
        return cls(members, own, bins, k)

    def sums(self, x: Tensor) -> Tensor:
        """x (…, n) → (…, k) float64."""
        if self.members is None:
            total = x.new_zeros(*x.shape[:-1], self.k, dtype=torch.float64)
            own = x * self.factor  # float64, as the factor is
            return total.scatter_(-1, self.bins.expand_as(own), own)
        # `index_select` of last entries is several times as slow.
        places = self.members.flatten().expand(*x.shape[:-1], -1)
        picked = x.gather(-1, places).double().unflatten(-1, self.members.shape)
        return folded(picked.mul_(self.factor), -2)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """total (…, k) += the sums of x (…, n)."""
        if self.members is None:  # at the places of its members only, each of which is met once
            own = x * self.factor
            places = self.bins.expand_as(own)
            total.scatter_(-1, places, own.add_(total.gather(-1, places)))
        else:
            total += self.sums(x)


def folded(x: Tensor, axis: int) -> Tensor:
    """The sum over an axis, which is overwritten: halves are added to each other until one is left."""
    left = x.shape[axis]
    while left > 1:
        half = left // 2
        x.narrow(axis, 0, half).add_(x.narrow(axis, left - half, half))
        left -= half
    return x.select(axis, 0)
