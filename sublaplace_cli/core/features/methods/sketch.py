"""Every parameter in one of k random signed sums."""

from .. import FeatureMap
from ..sketch import Sketch
from . import Choose


def sketch(k: int, seed: int, choose: Choose) -> FeatureMap:
    """Random sums alone: no method chooses anything."""
    return Sketch(k, seed)
