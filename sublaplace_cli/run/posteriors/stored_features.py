"""Feature maps in the metadata and tensors of a posterior: indices as they are, of a sketch only what draws it."""

from typing import Any

import torch
from torch import Tensor

from ...core.features import FeatureMap
from ...core.features.beside import Beside
from ...core.features.sketch import VERSION, Sketch
from ...core.features.subset import Subset
from ...core.selectors import checked
from ...errors import UserError
from ...files.artifacts.artifact import Artifact


def description_of(features: FeatureMap) -> dict[str, Any]:
    """The numbers that determine a map, besides its indices."""
    own = _sketch_of(features)
    return {} if own is None else {"sketch": {"k": own.k, "seed": own.seed, "version": VERSION}}


def indices_of(features: FeatureMap) -> dict[str, Tensor]:
    """The parameters of a map, if it has some."""
    subset = features.subset if isinstance(features, Beside) else features
    return {"indices": subset.indices} if isinstance(subset, Subset) else {}


def read_features(artifact: Artifact, n_params: int, device: torch.device) -> FeatureMap:
    """The map of a posterior."""
    where, described, subset = str(artifact.path), artifact.meta.get("sketch"), None
    if "indices" in artifact.meta["tensors"]:
        subset = Subset(checked(artifact.tensor("indices"), n_params, where).to(device))
    if described is None:
        assert subset is not None, "the schema of a posterior demands one of them"
        return subset
    if described["version"] != VERSION:
        found = f"its sketch is of version {described['version']}, this one makes version {VERSION}"
        raise UserError(f"{where}: {found}", hint="fit it again with: sublaplace fit --recompute")
    sketch = Sketch(described["k"], described["seed"])
    return sketch if subset is None else Beside(subset, sketch)


def size_of(artifact: Artifact) -> int:
    """k of the map of a posterior."""
    entry, described = artifact.meta["tensors"].get("indices"), artifact.meta.get("sketch")
    return (0 if entry is None else entry["shape"][0]) + (0 if described is None else described["k"])


def _sketch_of(features: FeatureMap) -> Sketch | None:
    own = features.sketch if isinstance(features, Beside) else features
    return own if isinstance(own, Sketch) else None
