"""The k/2 parameters with the largest gradients, and random signed sums of all others."""

from torch import Tensor

from ....errors import UserError
from ...selectors import SelectorFacts
from .. import FeatureMap
from ..beside import Beside
from ..sketch import Sketch
from ..subset import Subset


def check(facts: SelectorFacts, k: int | None) -> None:
    if k is not None and k < 2:
        raise UserError("gradient+sketch needs a k of at least 2: half of it are parameters, half are sums")


def gradient_sketch(k: int, seed: int, subset: Tensor | None) -> FeatureMap:
    """Half of k each; the sums have the odd one."""
    assert subset is not None, "the catalog names who chooses it"
    return Beside(Subset(subset), Sketch(k - len(subset), seed))
