"""A selection made elsewhere: `fit --indices FILE`."""

from pathlib import Path

import numpy as np
import torch

from ...core.selectors import checked
from ...errors import UserError
from ...files.artifacts.artifact import open_artifact
from ...files.artifacts.atomic import digest_of
from ..run import Run, parameter_table
from ..selections import Chosen


def read_indices(run: Run, path: Path) -> Chosen:
    """An indices artifact of the same weights and data, or a plain list of numbers."""
    if not path.is_file():
        raise UserError(f"--indices {path}: no such file")
    if path.suffix == ".safetensors":
        return _from_artifact(run, path)
    try:
        numbers = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, dtype=np.int64, ndmin=1)
        )
        indices = torch.from_numpy(numbers.astype(np.int64, casting="same_kind"))
    except (ValueError, OSError, EOFError, TypeError, AttributeError) as error:
        raise UserError(
            f"--indices {path}: {error}",
            hint="expected an indices-*.safetensors, a .npy, or one flat index per line",
        ) from error
    indices = checked(indices, run.layout.size, str(path)).to(run.device)
    digest = digest_of(indices.tolist())
    return Chosen(f"indices-{digest[:8]}", indices, digest)


def _from_artifact(run: Run, path: Path) -> Chosen:
    artifact = open_artifact(path, "indices")
    for what in ("weights", "data"):
        if artifact.meta[f"{what}_sha256"] != run.store.identity[what]:
            raise UserError(
                f"--indices {path}: it was chosen for other {what}",
                hint="choose again with: sublaplace select; or save the flat indices as a plain .npy or .txt file",
            )
    if artifact.meta["parameters"] != parameter_table(run.layout):
        raise UserError(f"--indices {path}: its parameter table is not that of this model")
    indices = checked(artifact.tensor("indices"), run.layout.size, str(path)).to(run.device)
    return Chosen(artifact.meta["method"], indices, artifact.digest)
