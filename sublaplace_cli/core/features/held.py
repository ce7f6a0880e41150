"""Features that several posteriors and steps need: made for all maps in one pass over the rows, then held.

Rows that are recomputed, or read from a file, cost a pass for each map and each step otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..jacobian.rows import Jacobian, loaded, n_outputs, row_tiles
from ..jacobian.sharded import local_part, workers_of
from ..progress import NoProgress, ProgressFactory
from ..workers import collective
from . import FeatureMap, Features
from .beside import Beside
from .sketch import Sketch
from .subset import Subset

FEATURES_SHARE = 8  # of the memory budget that all held features may take


@collective
def feature_rows(
    jacobian: Jacobian,
    prior: Tensor,
    indices: Tensor,
    table: Tensor,
    memory: int,
    *,
    made: Sequence[Features] | None = None,
    progress: ProgressFactory = NoProgress,
) -> list[Tensor]:
    """Φg′ of every row by several maps (N, C, k each), each worker's from its own rows; `made`: the maps, prepared."""
    own, rows = local_part(jacobian)
    C, ks = n_outputs(jacobian), [int(entries + sums) for entries, sums, _ in table.tolist()]
    features = [one.on(jacobian.layout, prior) for one in _maps(indices, table)] if made is None else made
    found = [prior.new_empty(len(own.outputs), C, k) for k in ks]
    with progress("features: rows", len(own.outputs)) as bar:
        for a, b, blocks in loaded(own, row_tiles(own, memory, extra=16 * C * sum(ks))):
            for values, one in zip(found, features, strict=True):
                values[a:b] = one.rows(blocks)
            bar.advance(b - a)
    if isinstance(rows, slice):
        return found
    whole = [values.new_zeros(len(jacobian.outputs), *values.shape[1:]) for values in found]
    for every, values in zip(whole, found, strict=True):
        every[rows] = values
        workers_of(jacobian).sum_to_leader(every)
    return whole


def _table(maps: Sequence[FeatureMap], device: torch.device) -> tuple[Tensor, Tensor]:
    """Maps as tensors, which workers can be sent: the indices of all, and (indices, sums, seed) of each."""
    indices, rows = [torch.zeros(0, dtype=torch.int64, device=device)], []
    for one in maps:
        sketch = one.sketch if isinstance(one, Beside) else one
        assert isinstance(sketch, Sketch), "entries alone are read as they are"
        if isinstance(one, Beside):
            indices.append(one.subset.indices)
        rows.append((one.k - sketch.k, sketch.k, sketch.seed))
    return torch.cat(indices), torch.tensor(rows)


def _maps(indices: Tensor, table: Tensor) -> list[FeatureMap]:
    """The maps of such a table."""
    maps, parts = list[FeatureMap](), indices.split(table[:, 0].tolist())
    for part, (entries, sums, seed) in zip(parts, table.tolist(), strict=True):
        sketch = Sketch(sums, seed)
        maps.append(Beside(Subset(part), sketch) if entries else sketch)
    return maps


@dataclass(eq=False)
class HeldFeatures:
    """The features of a network's rows by all maps that are registered, as far as they fit in memory."""

    prior: Tensor  # v (p,)
    memory: int
    progress: ProgressFactory = NoProgress
    _prepared: list[tuple[FeatureMap, Features]] = field(default_factory=list)
    _held: list[tuple[Jacobian, dict[int, Tensor]]] = field(default_factory=list)  # values by number of the map

    def register(self, feature_map: FeatureMap, features: Features) -> int:
        """The number under which `values` gives them."""
        self._prepared.append((feature_map, features))
        return len(self._prepared) - 1

    def values(self, jacobian: Jacobian, number: int) -> Tensor | None:
        """The features of all rows by one map (N, C, k); None if they take too much memory."""
        held = next((own for source, own in self._held if source is jacobian), None)
        if held is None:
            held = {}
            self._held.append((jacobian, held))
        if number not in held:
            numbers = self._that_fit(jacobian, [number, *(i for i in range(len(self._prepared)) if i not in held)])
            if numbers:
                maps, made = zip(*(self._prepared[i] for i in numbers), strict=True)
                tensors = _table(maps, self.prior.device)
                found = feature_rows(jacobian, self.prior, *tensors, self.memory, made=made, progress=self.progress)
                held.update(zip(numbers, found, strict=True))
        return held.get(number)

    def _that_fit(self, jacobian: Jacobian, wanted: Sequence[int]) -> list[int]:
        """The first of these maps, then as many others as there is room for."""
        left = self.memory // FEATURES_SHARE
        left -= sum(8 * values.numel() for _, own in self._held for values in own.values())
        numbers: list[int] = []
        for i in dict.fromkeys(wanted):
            left -= 8 * len(jacobian.outputs) * n_outputs(jacobian) * self._prepared[i][0].k
            if left < 0:
                break
            numbers.append(i)
        return numbers
