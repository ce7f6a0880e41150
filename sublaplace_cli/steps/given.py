"""A selection made elsewhere: `fit --indices FILE`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..core.selectors import checked
from ..errors import UserError
from ..files.artifacts.artifact import open_artifact
from ..files.artifacts.atomic import digest_of
from .select import Chosen
from .session import Session


def indices_from_file(session: Session, path: Path) -> Chosen:
    """A selection made elsewhere: an indices artifact of these weights and data, or a plain list of numbers."""
    if not path.is_file():
        raise UserError(f"--indices {path}: no such file")
    if path.suffix == ".safetensors":
        return _indices_artifact(session, path)
    try:
        numbers = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, dtype=np.int64, ndmin=1)
        )
        indices = torch.from_numpy(numbers.astype(np.int64, casting="same_kind"))
    except (ValueError, OSError, EOFError, TypeError, AttributeError) as error:
        raise UserError(
            f"--indices {path}: {error}",
            hint="expected an indices-*.safetensors, a .npy, or one flat index a line",
        ) from error
    indices = checked(indices, session.layout.size, str(path)).to(session.device)
    digest = digest_of(indices.tolist())
    return Chosen(f"indices-{digest[:8]}", indices, digest)


def _indices_artifact(session: Session, path: Path) -> Chosen:
    found = open_artifact(path, "indices")
    for what, mine in (("weights", session.identity["weights"]), ("data", session.identity["data"])):
        if found.meta[f"{what}_sha256"] != mine:
            raise UserError(
                f"--indices {path}: it was chosen for other {what}",
                hint="choose anew with: sublaplace select; or save the flat indices as a plain .npy or .txt file",
            )
    if found.meta["parameters"] != [[q.name, list(q.shape), q.offset] for q in session.layout.parameters]:
        raise UserError(f"--indices {path}: its parameter table is not that of this model")
    indices = checked(found.tensor("indices"), session.layout.size, str(path)).to(session.device)
    return Chosen(found.meta["method"], indices, found.digest)
