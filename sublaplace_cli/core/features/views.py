"""How a posterior sees the rows: as some columns of their Jacobian, or as features of their gradients.

Either way it is a sub-network's posterior over the columns `indices` of what `rows` returns. So everything is fitted,
predicted, drawn and rescaled by the same code for every feature map.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from ..jacobian.blocks import Block
from ..jacobian.rows import Jacobian
from ..network.layout import Layout
from ..omega.precision import Precision
from ..omega.row_sums import columns_of_blocks
from . import FeatureMap, Features
from .held import HeldFeatures
from .rows import FeatureJacobian
from .subset import Subset


class View(Protocol):
    """The rows of one network as a posterior over k features sees them."""

    @property
    def indices(self) -> Tensor:
        """Columns of `rows`, in their order (k,)."""

    @property
    def has_outside(self) -> bool:
        """Whether some parameters are left out, so that the gradient has a part outside."""

    def rows(self, jacobian: Jacobian) -> Jacobian: ...
    def precision(self, precision: Precision) -> Precision: ...
    def columns(self, blocks: Sequence[Block]) -> Tensor:
        """Those of `rows` from the blocks of one pass, transposed (k, m·C)."""


@dataclass(frozen=True)
class EntryView:
    """A sub-network: the rows as they are."""

    indices: Tensor  # S (k,)
    has_outside = True

    def rows(self, jacobian: Jacobian) -> Jacobian:
        return jacobian

    def precision(self, precision: Precision) -> Precision:
        return precision

    def columns(self, blocks: Sequence[Block]) -> Tensor:
        return columns_of_blocks(blocks, self.indices, blocks[0].n_rows * blocks[0].n_outputs)


@dataclass(frozen=True)
class FeatureView:
    """Features of every parameter, in the prior's metric."""

    features: Features
    k: int
    device: torch.device
    memory: int
    held: Callable[[Jacobian], Tensor | None]  # features of all rows, where they are held
    has_outside = False

    @cached_property
    def indices(self) -> Tensor:
        return torch.arange(self.k, device=self.device)

    def rows(self, jacobian: Jacobian) -> FeatureJacobian:
        return FeatureJacobian(jacobian, self.features, self.k, self.memory, self.held(jacobian))

    def precision(self, precision: Precision) -> Precision:
        ones = torch.ones(self.k, dtype=torch.float64, device=self.device)
        return replace(precision, jacobian=self.rows(precision.jacobian), prior=ones)

    def columns(self, blocks: Sequence[Block]) -> Tensor:
        return self.features.rows(blocks).flatten(0, 1).T.contiguous()


def view_of(
    feature_map: FeatureMap, layout: Layout, prior: Tensor, memory: int, held: HeldFeatures | None = None
) -> View:
    """The view of a map, for a network with this prior (p,); with `held`, features are held where they fit."""
    if isinstance(feature_map, Subset):
        return EntryView(feature_map.indices)
    features = feature_map.on(layout, prior)
    values = _none if held is None else partial(held.values, number=held.register(feature_map, features))
    return FeatureView(features, feature_map.k, prior.device, memory, values)


def _none(_: Jacobian) -> None:
    """Nothing is held."""
