"""Feature maps as matrices: the reference that every structured path is compared with."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from sublaplace_cli.core.features import FeatureMap
from sublaplace_cli.core.features.beside import Beside
from sublaplace_cli.core.features.groups import random_bins
from sublaplace_cli.core.features.sketch import Sketch
from sublaplace_cli.core.features.subset import Subset
from sublaplace_cli.core.network.layout import Layout


def matrix_of(feature_map: FeatureMap, layout: Layout) -> Tensor:
    """Φ (k, p)."""
    if isinstance(feature_map, Subset):
        phi = torch.zeros(feature_map.k, layout.size, dtype=torch.float64)
        phi[torch.arange(feature_map.k), feature_map.indices] = 1.0
        return phi
    if isinstance(feature_map, Beside):
        sketch = matrix_of(feature_map.sketch, layout)
        sketch[:, feature_map.subset.indices] = 0.0
        return torch.cat([matrix_of(feature_map.subset, layout), sketch])
    assert isinstance(feature_map, Sketch)
    k, phi = feature_map.k, torch.zeros(feature_map.k, layout.size, dtype=torch.float64)
    for number, parameter in enumerate(layout.parameters):
        seed = feature_map.seed, number
        if len(parameter.shape) == 2:
            d_out, d_in = parameter.shape
            (h1, s1), (h2, s2) = random_bins(d_out, k, *seed, 0), random_bins(d_in + 1, k, *seed, 1)
            for o, i in itertools.product(range(d_out), range(d_in)):
                phi[(h1[o] + h2[i]) % k, parameter.offset + o * d_in + i] = s1[o] * s2[i]
            column = h1, s1, h2[-1], s2[-1]  # of a vector that comes next
        else:
            before = layout.parameters[number - 1].shape if number else ()
            bins, signs = random_bins(parameter.size, k, *seed)
            if len(before) == 2 and parameter.shape == before[:1]:
                h1, s1, h, s = column
                bins, signs = (h1 + h) % k, s1 * s
            for j in range(parameter.size):
                phi[bins[j], parameter.offset + j] = signs[j]
    return phi


def features_of(feature_map: FeatureMap, layout: Layout, v: Tensor, J: Tensor) -> Tensor:
    """Φ V^(−½) Jᵀ of every row and output of a dense Jacobian: (m, C, p) → (m, C, k)."""
    return torch.einsum("kp,ncp->nck", matrix_of(feature_map, layout) * v.rsqrt(), J.double())


def assert_rows_close(found: Tensor, expected: Tensor, relative: float = 1e-12) -> None:
    """Equal to `relative` of the norm of the features: a transform rounds each sum by the size of all of them."""
    assert found.shape == expected.shape
    error, size = float((found - expected).abs().max()), float(expected.norm(dim=2).max())
    assert error <= relative * size, f"error {error:.3g} of {size:.3g}"
