"""The k/2 parameters with the largest gradients, and random signed sums of all others."""

from ....errors import UserError
from ...selectors import SelectorFacts
from .. import FeatureMap
from ..beside import Beside
from ..sketch import Sketch
from ..subset import Subset
from . import Choose


def check(facts: SelectorFacts, k: int | None) -> None:
    if k is not None and k < 2:
        raise UserError("gradient+sketch needs a k of at least 2: half of it are parameters, half are sums")


def gradient_sketch(k: int, seed: int, choose: Choose) -> FeatureMap:
    """Half of k each; the sums have the odd one."""
    return Beside(Subset(choose("gradient", k // 2)), Sketch(k - k // 2, seed))
