"""Feature maps: k linear functions Φ of a gradient in the prior's metric, g′ = V^(−½) g, one file each.

A posterior over k features has the fit, the factor and the size of a sub-network's. A map says only how it is made;
`on(layout, prior)` prepares it for one network. To add one: write both classes in a file of its own, and add the map to
those in the tests.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..jacobian.blocks import Block
from ..network.layout import Layout


class Features(Protocol):
    """A map that is prepared for one network and its prior."""

    def rows(self, blocks: Sequence[Block]) -> Tensor:
        """Σ over these blocks of the same rows of their part of Φg′, one vector per row and output (m, C, k)."""


class FeatureMap(Protocol):
    """How the features of any network are made."""

    @property
    def k(self) -> int: ...
    def on(self, layout: Layout, prior: Tensor) -> Features: ...
